"""The program of the server that forks worker processes; it loads what they need, and runs no job.

A fork copies one thread, so it may find a lock that no thread will ever release. If the server has another thread, and
on macOS, where system libraries start some, workers are new programs instead.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import Any, NoReturn

from tokenloom.tasks.running.worker_process import serve
from tokenloom.without_pandas import keep_pandas_out

_WORKER = (
    "import sys; sys.path[:] = sys.argv[2:]; from tokenloom.tasks.running.worker_process import serve; "
    "serve(int(sys.argv[1]))"
)
_POLL_SECONDS = 0.002


def serve_forks(descriptor: int) -> NoReturn:
    """Run in the server: start workers until the parent is gone."""
    gc.disable()  # loading makes no garbage, and a collection would write to the pages that forks share
    keep_pandas_out()
    os.set_inheritable(descriptor, False)  # in a worker it would hide from the parent that the server has ended
    control = Connection(descriptor)
    while True:
        try:
            request, *arguments = control.recv()
            if request == "preload":
                _preload(*arguments)
            elif request == "start":
                control.send(_start_worker(control))
            else:
                control.send(_wait(*arguments))
        except (EOFError, ConnectionError):
            os._exit(0)  # the parent is gone


def _preload(function: Callable[..., object], *arguments: Any) -> None:
    with contextlib.suppress(Exception):  # the step that needs it raises the same
        function(*arguments)


def _start_worker(control: Connection) -> int:
    descriptor = recv_handle(control)
    try:
        if not _can_fork():
            os.set_inheritable(descriptor, True)
            return os.posix_spawn(
                sys.executable, [sys.executable, "-c", _WORKER, str(descriptor), *sys.path], os.environ
            )
        gc.freeze()
        pid = os.fork()
        if pid == 0:
            gc.enable()
            control.close()
            serve(descriptor)
        return pid
    finally:
        os.close(descriptor)


def _can_fork() -> bool:
    """Return whether this process is known to have one thread."""
    tasks = Path("/proc/self/task")  # missing where /proc is not mounted
    return sys.platform == "linux" and tasks.is_dir() and len(list(tasks.iterdir())) == 1


def _wait(pid: int, seconds: float) -> int | None:
    deadline = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= deadline:
            return None
        time.sleep(_POLL_SECONDS)
