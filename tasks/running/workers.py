"""Worker processes, leased by the threads that run tasks.

A thread calls `WorkerPool.call(function, job)`: a free child process runs it and sends back its result or its
exception. Children are forks of a small process (fork_server.py), not of this one, so they never import Prefect. If a
child is killed, its call fails with WorkerLost and another child takes its place. Children wait on a socket of their
parent, so they end when it ends, whatever ends it.
"""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from types import TracebackType
from typing import Any, TypeVar

from tokenloom.cores import num_cores
from tokenloom.errors import WorkerLost
from tokenloom.storage.stores.remote_errors import is_transient, mark_transient
from tokenloom.tasks.running import progress
from tokenloom.tasks.running.fork_server import ForkServer, early_or_new_server

Job = TypeVar("Job")
Result = TypeVar("Result")

STOPPED = "the build is ending; this work was stopped"  # the message of calls in progress when another has failed
_CLOSE_SECONDS = 2.0


def chosen_num_workers(asked: int | None) -> int:
    """Return how many worker processes a build uses: as asked, or else one for each core that this process may use."""
    return num_cores() if asked is None else asked


class _Worker:
    """A worker process and the socket to it."""

    def __init__(self, server: ForkServer) -> None:
        self._activity = "starting"
        self.is_busy = False
        self.reported = progress.Reported()
        self._connection, theirs = Pipe()
        with theirs:
            self._process = server.start_worker(theirs)

    def call(self, function: Callable[[Any], Any], job: Any) -> Any:
        self.is_busy = True
        self.reported = progress.Reported()
        kind, value = self._exchange((function, job))
        while kind == "event":
            if isinstance(value, progress.Working):
                self._activity = value.what
            else:
                self.reported.add(value)
                progress.report(value)
            kind, value = self._exchange()
        self.is_busy = False
        if kind == "error" and isinstance(value, MemoryError):
            raise WorkerLost(
                f"a worker process ran out of memory while {self._activity}; use fewer --workers"
            ) from value
        if kind == "error":
            raise value  # not in _exchange, which treats any EOFError as a lost worker
        return value

    def _exchange(self, call: tuple[Callable[[Any], Any], Any] | None = None) -> tuple[str, Any]:
        """Send `call` if there is one, and return the worker's next message."""
        try:
            if call is not None:
                self._connection.send(call)
            message: tuple[str, Any] = self._connection.recv()
        except (EOFError, OSError) as error:  # OSError also for a socket that `release` has closed
            raise WorkerLost(f"a worker process ended while {self._activity}: {self._why()}") from error
        return message

    def _why(self) -> str:
        code = self._process.exit_code(_CLOSE_SECONDS)
        if code is None:
            return "the reason is unknown"
        if code == -signal.SIGKILL:
            return "killed (SIGKILL), often by the system because memory ran out; use fewer --workers"
        if code in (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL):
            name = signal.Signals(-code).name
            return f"crashed in native code ({name}); if that happens again, repair the input or leave it out"
        if code == -signal.SIGALRM:  # see ending_if_hung in tokenizers/fast/tokenizer.py
            return "hung in native code (SIGALRM)"
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def is_alive(self) -> bool:
        return self._process.exit_code(0) is None

    def hang_up(self) -> None:
        """Close the socket, so that an idle process ends."""
        self._connection.close()

    def end(self, *, now: bool) -> None:
        """End the process: at once, even in the middle of a call, or an idle one by closing its socket."""
        if not now:
            self.hang_up()
            if self._process.exit_code(_CLOSE_SECONDS) is not None:
                return
        self._process.kill(_CLOSE_SECONDS)  # the thread that waits for its answer sees the socket close


class WorkerPool:
    """Up to `num_workers` child processes, each started when it is first needed.

    Args:
        num_workers: processes, at least 0; with 0 every call runs in its own thread of this process.
        environment: the processes' environment; None for a copy of this one's.
    """

    def __init__(self, num_workers: int, environment: Mapping[str, str] | None = None) -> None:
        if num_workers < 0:
            raise ValueError(f"workers must be at least 0, not {num_workers}")
        self.num_workers = num_workers
        self._environment = environment
        self._server: ForkServer | None = None
        self._free: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        self._started: set[_Worker] = set()
        self._lock = threading.Lock()
        self.closed = False
        for _ in range(num_workers):
            self._free.put(None)

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(now=error is not None)

    def call(self, function: Callable[[Job], Result], job: Job) -> Result:
        """Run `function(job)` in a free child and return its result; both must pickle.

        Raises what the function raises, with the child's traceback as a note; WorkerLost if the child dies.
        """
        if self.num_workers == 0:
            return function(job)
        worker = self._free.get()
        try:
            worker = worker or self._start()
            result: Result = worker.call(function, job)
            return result
        except Exception as error:
            if self.closed and isinstance(error, WorkerLost):
                raise _stopped() from error
            if worker is not None and is_transient(error):  # the build calls again
                worker.reported.take_back()
            raise
        finally:
            self._give_back(worker)

    def preload(self, function: Callable[..., object], *arguments: Any) -> None:
        """Begin to call a function once for all children, before they start; with 0 processes do nothing."""
        if self.num_workers:
            with self._lock:
                self._running_server().preload(function, *arguments)

    def _start(self) -> _Worker:
        with self._lock:
            server = self._running_server()
        worker = _Worker(server)  # without the lock: it waits while the server loads, which `close` must end
        with self._lock:
            if not self.closed:
                self._started.add(worker)
                return worker
        worker.end(now=True)
        raise _stopped()

    def _running_server(self) -> ForkServer:
        if self.closed:
            raise _stopped()
        if self._server is not None and not self._server.is_alive():
            self._server.close()
            self._server = None
        if self._server is None:
            self._server = early_or_new_server(self._environment)
        return self._server

    def _give_back(self, worker: _Worker | None) -> None:
        if worker is not None and (worker.is_busy or not worker.is_alive()):
            # Dead, or abandoned during a call by an exception here: its next answer would be to the old call.
            with self._lock:
                self._started.discard(worker)
            worker.end(now=True)
            worker = None
        self._free.put(worker)

    def release(self) -> None:
        """Let idle children end, without waiting for that as `close` does; from now on, calls raise WorkerLost."""
        with self._lock:
            self.closed = True
            for worker in self._started:
                if not worker.is_busy:
                    worker.hang_up()

    def close(self, *, now: bool = False) -> None:
        """End all children; `now` kills the busy ones, whose callers get WorkerLost."""
        if not now:
            self.release()  # all at once: the system takes 20 ms to free the memory of each
        with self._lock:
            self.closed = True  # also with `now`
            workers = list(self._started)
            self._started.clear()
        for worker in workers:
            worker.end(now=now)
        if self._server is not None:
            self._server.close()


def _stopped() -> WorkerLost:
    error = WorkerLost(STOPPED)
    mark_transient(error, transient=False)
    return error
