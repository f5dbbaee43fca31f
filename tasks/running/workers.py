"""Worker processes, leased by the threads that run tasks.

A thread calls `WorkerPool.call(function, job)`: a free child process runs it and sends back its result or its
exception. Children are forks of a small server (worker_process.py), not of this process, so they never import Prefect,
and a script that builds needs no `if __name__ == "__main__"`, as it would with Python's own pools. A child that is
killed or crashes fails its call with WorkerLost, which names what it worked on, and ends the build.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from types import TracebackType
from typing import Any, TypeVar

from tokenloom.cores import num_cores
from tokenloom.errors import WorkerLost
from tokenloom.tasks.running import progress

Job = TypeVar("Job")
Result = TypeVar("Result")

STOPPED = "the build is ending; this work was stopped"  # the message of calls in progress when another has failed
_KILLED, _NO_MEMORY = "killed, perhaps for memory", "out of memory"
_CLOSE_SECONDS = 2.0
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[2:]; from tokenloom.tasks.running.worker_process import serve_forks; "
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


def chosen_num_workers(asked: int | None) -> int:
    """Return how many worker processes a build uses: as asked, or else one for each core that this process may use."""
    return num_cores() if asked is None else asked


class _Server:
    """The process that starts workers with an environment."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._has_workers = False
        self._control, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(theirs.fileno()), *sys.path],
                stdin=subprocess.DEVNULL,
                stdout=2,  # stdout is the caller's
                pass_fds=[theirs.fileno()],
                env=_DEFAULTS | dict(environment) | _ENVIRONMENT,
                start_new_session=True,  # Ctrl-C reaches all of a terminal's group; here, only the parent decides
            )

    def preload(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function in the server, for what it imports and keeps in memory; return at once.

        What it raises is left to the worker that needs the same.
        """
        with self._lock, contextlib.suppress(OSError):  # start_worker raises it too
            self._control.send(("preload", function, *arguments))

    def start_worker(self, connection: Connection) -> int:
        """Start a worker that answers calls from a connection; return its process id."""
        with self._lock:
            self._has_workers = True
            self._control.send(("start",))
            send_handle(self._control, connection.fileno(), self._process.pid)
            return int(self._control.recv())

    def exit_code(self, pid: int) -> int | None:
        """Wait for a worker that ends; return its exit code, -n if signal n ended it; None if the server ended too."""
        with self._lock, contextlib.suppress(EOFError, OSError):
            self._control.send(("wait", pid))
            return int(self._control.recv())
        return None

    def close(self) -> None:
        """End the server, which kills its workers first, if it has any."""
        if not self._has_workers:
            self._process.kill()  # even while it loads something
        self._control.close()
        try:
            self._process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


_early: _Server | None = None


def start_early(function: Callable[[], object]) -> None:
    """Start the server of the first pool of this program, and call `function` there while this process imports."""
    global _early
    _early = _Server(os.environ)
    atexit.register(_early.close)  # it has our stderr: whoever reads that waits until the server has loaded and ends
    _early.preload(function)


def _early_or_new_server(environment: Mapping[str, str] | None) -> _Server:
    """Return the server that start_early has started, once and only if `environment` is None, or else a new one."""
    global _early
    if environment is not None or _early is None:
        return _Server(os.environ if environment is None else environment)
    server, _early = _early, None
    return server


class _Worker:
    """A worker process and the socket to it."""

    def __init__(self, server: _Server) -> None:
        self.activity = "starting"
        self._connection, theirs = Pipe()
        with theirs:
            self.pid = server.start_worker(theirs)

    def call(self, call: bytes) -> tuple[str, Any]:
        """Run a pickled (function, job); return ("result", value) or ("error", exception).

        Raises OSError or EOFError if the process ends.
        """
        try:
            self._connection.send_bytes(call)
            while (message := self._connection.recv())[0] == "event":
                if isinstance(message[1], progress.Working):
                    self.activity = message[1].what
                else:
                    progress.report(message[1])
        except BaseException:
            self._connection.close()  # its next answer would be to this call
            raise
        return message  # type: ignore[no-any-return]


class WorkerPool(contextlib.AbstractContextManager["WorkerPool"]):
    """Up to `num_workers` child processes, each started when it is first needed.

    Args:
        num_workers: processes, at least 0; with 0 every call runs in its own thread of this process.
        environment: the processes' environment; None for a copy of this one's.
    """

    def __init__(self, num_workers: int, environment: Mapping[str, str] | None = None) -> None:
        if num_workers < 0:
            raise ValueError(f"workers must be at least 0, not {num_workers}")
        self.num_workers = num_workers
        self._server = _early_or_new_server(environment) if num_workers else None
        self._free: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        self._closed = False
        for _ in range(num_workers):
            self._free.put(None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def call(self, function: Callable[[Job], Result], job: Job) -> Result:
        """Run `function(job)` in a free child and return its result; both must pickle.

        Raises what the function raises, with the child's traceback as a note; WorkerLost if the child dies.
        """
        if self._server is None:
            return function(job)
        call, worker = pickle.dumps((function, job)), self._free.get()
        try:
            worker = worker or _Worker(self._server)
            kind, value = worker.call(call)
        except (EOFError, OSError) as error:
            if self._closed:
                raise WorkerLost(STOPPED) from error
            raise self._lost(worker) from error
        finally:
            self._free.put(worker)
        if kind == "result":
            return value  # type: ignore[no-any-return]
        if isinstance(value, MemoryError):
            raise self._lost(worker, _NO_MEMORY) from value
        raise value

    def _lost(self, worker: _Worker | None, why: str = "") -> WorkerLost:
        """Return the error for a worker that ended, or for the server, which never started it."""
        activity = worker.activity if worker else "starting"
        why = why or _meaning(self._server.exit_code(worker.pid) if self._server and worker else None)
        if why in (_KILLED, _NO_MEMORY):
            why += f": --workers {self.num_workers // 2}"
        return WorkerLost(
            f"a worker process ended while {activity}: {why}; run the same command again, finished work is kept"
        )

    def preload(self, function: Callable[..., object], *arguments: Any) -> None:
        """Begin to call a function once for all children, before they start; with 0 processes do nothing."""
        if self._server:
            self._server.preload(function, *arguments)

    def close(self) -> None:
        """Kill all children; calls in progress raise WorkerLost."""
        self._closed = True
        if self._server:
            self._server.close()


def _meaning(code: int | None) -> str:
    """Return what an exit code of a worker means; None if it is unknown."""
    if code is None:
        return "the reason is unknown"
    if code >= 0:
        return f"exit code {code}"
    if code == -signal.SIGKILL:
        return _KILLED
    if code == -signal.SIGALRM:  # see ending_if_hung in tokenizers/fast/tokenizer.py
        return "hung in native code (SIGALRM); if that happens again, set tokenizer: {backend: reference}"
    name = signal.Signals(-code).name
    return (
        f"crashed in native code ({name}); if that happens again, repair the input, leave it out, or set tokenizer: "
        "{backend: reference}"
    )
