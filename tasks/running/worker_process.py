"""The programs beside a build: a server that forks worker processes, and the workers.

The server imports and loads what workers need once: a fork takes milliseconds where imports take 0.3 s, and shares the
memory of what was loaded. It is a program of its own, so neither it nor a worker has the threads, locks or modules of
the process that builds, nor runs its main script. When that process is gone, whatever ended it, the server kills the
workers and ends.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import Any, NoReturn

from tokenloom.errors import named_message_of
from tokenloom.storage.stores.remote_errors import is_transient, mark_transient
from tokenloom.tasks.running import memory, progress
from tokenloom.tokenizers.base import WORKER_MARK
from tokenloom.without_pandas import keep_pandas_out

_WORKER = (
    "import sys; sys.path[:] = sys.argv[2:]; from tokenloom.tasks.running.worker_process import serve; "
    "serve(int(sys.argv[1]))"
)


def serve_forks(descriptor: int) -> NoReturn:
    """Run in the server: load and start what the parent asks for, until it is gone."""
    gc.disable()  # loading makes no garbage, and a collection would write to the pages that forks share
    keep_pandas_out()
    os.set_inheritable(descriptor, False)  # in a worker it would hide from the parent that the server has ended
    control = Connection(descriptor)
    workers: set[int] = set()
    while True:
        try:
            request, *arguments = control.recv()
            if request == "preload":
                _preload(*arguments)
            elif request == "start":
                workers.add(pid := _start_worker(control))
                control.send(pid)
            else:
                (pid,) = arguments
                control.send(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                workers.discard(pid)
        except (EOFError, ConnectionError):
            _end(workers)


def _end(workers: set[int]) -> NoReturn:
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    for pid in workers:
        os.waitpid(pid, 0)
    os._exit(0)


def _preload(function: Callable[..., object], *arguments: Any) -> None:
    with contextlib.suppress(Exception):  # the step that needs it raises the same
        function(*arguments)


def _start_worker(control: Connection) -> int:
    descriptor = recv_handle(control)
    try:
        tasks = Path("/proc/self/task")  # a fork copies one thread, and locks that others hold
        if not tasks.is_dir() or len(list(tasks.iterdir())) > 1:
            os.set_inheritable(descriptor, True)
            command = [sys.executable, "-c", _WORKER, str(descriptor), *sys.path]
            return os.posix_spawn(sys.executable, command, os.environ)
        gc.freeze()
        pid = os.fork()
        if pid == 0:
            gc.enable()
            control.close()
            serve(descriptor)
        return pid
    finally:
        os.close(descriptor)


def serve(descriptor: int) -> NoReturn:
    """Run in a worker: answer calls from the connection with this file descriptor, until the parent is gone."""
    keep_pandas_out()
    memory.bound_this_process()
    os.environ[WORKER_MARK] = "1"
    connection = Connection(descriptor)
    sending = threading.Lock()  # uploads report from threads of their own

    def send(message: bytes) -> None:
        with sending:
            connection.send_bytes(message)

    with progress.listening(lambda event: send(pickle.dumps(("event", event)))):
        while True:
            try:
                send(_answer(connection.recv_bytes()))
            except (EOFError, OSError):
                os._exit(1)  # the parent is gone


def _answer(call: bytes) -> bytes:
    """Run a call; return ("result", value) or ("error", exception), pickled."""
    try:
        function, job = pickle.loads(call)  # noqa: S301  (our parent's bytes)
        return pickle.dumps(("result", function(job)))
    except BaseException as error:  # noqa: BLE001  (a native library's panic is not an Exception; all are sent)
        mark_transient(error, is_transient(error))
        error.add_note("in a worker process:\n" + traceback.format_exc())
        try:
            answer = pickle.dumps(("error", error))
            pickle.loads(answer)  # noqa: S301  (our own bytes)
        except Exception:  # noqa: BLE001  (an error that can't be pickled is sent as its text)
            described = RuntimeError(f"{named_message_of(error)}\n{traceback.format_exc()}")
            mark_transient(described, is_transient(error))
            return pickle.dumps(("error", described))
        return answer
