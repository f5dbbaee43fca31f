"""Start worker processes as forks of one process that has imported what they need.

A fork takes milliseconds where imports take 0.3 s, and shares the memory of what was loaded. The server (forking.py) is
a program of its own, so neither it nor a worker has the threads, locks or modules of the process that builds. This
module imports little, because the server starts before anything else.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from typing import Any

from tokenloom.errors import WorkerLost

_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[2:]; from tokenloom.tasks.running.forking import serve_forks; "
    "serve_forks(int(sys.argv[1]))"
)
_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",  # a transform that depends on the order of a set gives the same texts in each build
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "NUMPY_MADVISE_HUGEPAGE": "0",  # a guest may have to get huge pages from its host: docs/project/decisions.md
    "MIMALLOC_ARENA_EAGER_COMMIT": "0",  # Arrow's memory counts when it is used, not 1 GiB at once: see memory.py
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
# Reference libraries allocate for each word: huge pages and no fast bins help (docs/project/decisions-running.md).
_DEFAULTS = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.mxfast=0"}


class ForkServer:
    """The process that starts workers.

    Args:
        environment: of the server and the workers.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._control, theirs = Pipe()
        with theirs, _interrupts_blocked():
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(theirs.fileno()), *sys.path],
                stdin=subprocess.DEVNULL,
                stdout=2,  # stdout is the caller's
                pass_fds=[theirs.fileno()],
                env=_DEFAULTS | dict(environment) | _ENVIRONMENT,
            )

    def preload(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function in the server, for what it imports and keeps in memory; return at once.

        What it raises is left to the worker that needs the same.
        """
        with self._lock, contextlib.suppress(OSError):  # start_worker reports that the server has ended
            self._control.send(("preload", function, *arguments))

    def start_worker(self, connection: Connection) -> WorkerProcess:
        """Start a worker that answers calls from a connection; raises WorkerLost if the server has ended."""
        try:
            return WorkerProcess(self, self._ask(("start",), connection))
        except (EOFError, OSError) as error:
            raise WorkerLost("the process that starts worker processes ended; run the same build again") from error

    def exit_code(self, pid: int, seconds: float) -> int | None:
        """Wait up to `seconds` for a worker; return as WorkerProcess.exit_code, None also if the server has ended."""
        try:
            code: int | None = self._ask(("wait", pid, seconds))
        except (EOFError, OSError):
            return None
        return code

    def _ask(self, request: tuple[Any, ...], connection: Connection | None = None) -> Any:
        """Send a request, and the file descriptor of a connection; return the answer."""
        with self._lock:
            try:
                self._control.send(request)
                if connection is not None:
                    send_handle(self._control, connection.fileno(), self._process.pid)
                return self._control.recv()
            except BaseException:
                self._end()  # if this was interrupted, the next request would get this answer
                raise

    def is_alive(self) -> bool:
        """Return whether the server can start workers."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the server, even while it loads something; its workers continue."""
        self._process.kill()  # before the lock: a thread may wait for an answer
        with self._lock:
            self._end()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._control.close()


class WorkerProcess:
    """A worker; its server keeps the process id from being used again until it is asked for the exit code."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server, self._pid = server, pid
        self._code: int | None = None
        self._lock = threading.Lock()  # the server knows the exit code only once

    def exit_code(self, seconds: float) -> int | None:
        """Wait up to `seconds` for its end; return its exit code, -n if signal n ended it, or None if it runs on."""
        with self._lock:
            if self._code is None:
                self._code = self._server.exit_code(self._pid, seconds)
            return self._code

    def kill(self, seconds: float) -> None:
        """End it, and wait up to `seconds` until the system has."""
        with self._lock:
            if self._code is None:
                with contextlib.suppress(ProcessLookupError):  # the server has ended, and so has the worker
                    os.kill(self._pid, signal.SIGKILL)
        self.exit_code(seconds)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Make children started in the block ignore Ctrl-C, which reaches the whole process group: the parent decides."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_early: ForkServer | None = None


def start_early(function: Callable[[], object]) -> None:
    """Start the server for the first pool of this program, and call `function` there while this process imports."""
    global _early
    _early = ForkServer(os.environ)
    atexit.register(_early.close)  # it has our stderr: whoever reads that waits until the server has loaded and ends
    _early.preload(function)


def early_or_new_server(environment: Mapping[str, str] | None) -> ForkServer:
    """Return the server that start_early has started, once and only if `environment` is None, or else a new one."""
    global _early
    if environment is not None or _early is None:
        return ForkServer(os.environ if environment is None else environment)
    server, _early = _early, None
    return server
