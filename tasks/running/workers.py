"""Worker processes, leased by the threads that run tasks.

A thread calls `WorkerPool.call(function, job)`: a free child process runs it and sends back its result or its
exception. Children start neither from a fork nor from the caller's main module, so they are small and never import
Prefect. If a child is killed, its call fails with WorkerLost and another child takes its place. Children wait on a
socket of their parent, so they end when it ends, whatever ends it.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from tokenloom.errors import WorkerLost
from tokenloom.storage.stores.remote_errors import is_transient, mark_transient
from tokenloom.tasks.running import memory, progress
from tokenloom.tasks.running.without_pandas import keep_pandas_out
from tokenloom.tokenizers.base import WORKER_MARK

Job = TypeVar("Job")
Result = TypeVar("Result")

STOPPED = "the build is ending; this work was stopped"  # the message of calls in progress when another has failed
_START = (
    "import sys; sys.path[:] = sys.argv[2:]; from tokenloom.tasks.running.workers import serve; serve(int(sys.argv[1]))"
)
_CLOSE_SECONDS = 2.0
_ONE_THREAD = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_MARKED = {WORKER_MARK: "1"}
# Arrow's memory counts when it is used, not 1 GiB at once: see memory.py.
_COUNTED = {"MIMALLOC_ARENA_EAGER_COMMIT": "0"}


def chosen_num_workers(asked: int | None) -> int:
    """Return how many worker processes a build uses: as asked, or else one for each core that this process may use."""
    if asked is not None:
        return asked
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, _container_cores()))


def _container_cores() -> int:
    """Return the cores that a container's CPU limit allows, rounded up (cgroup v2); sys.maxsize without a limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return sys.maxsize
    return sys.maxsize if quota == "max" else -(-int(quota) // int(period))


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Make children started in the block ignore Ctrl-C, which reaches the whole process group: the parent decides."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Worker:
    """One child process and the socket to it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._activity = "starting"
        self.is_busy = False
        self._connection, theirs = Pipe()
        with theirs, _interrupts_blocked():
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, str(theirs.fileno()), *sys.path],
                stdin=subprocess.DEVNULL,
                stdout=2,  # stdout is the caller's
                pass_fds=[theirs.fileno()],
                env=dict(environment) | _ONE_THREAD | _COUNTED | _MARKED,
            )

    def call(self, function: Callable[[Any], Any], job: Any) -> Any:
        self.is_busy = True
        kind, value = self._exchange((function, job))
        while kind == "event":
            if isinstance(value, progress.Working):
                self._activity = value.what
            else:
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
        """Send `call` if there is one, and return the child's next message."""
        try:
            if call is not None:
                self._connection.send(call)
            message: tuple[str, Any] = self._connection.recv()
        except (EOFError, ConnectionError) as error:
            raise WorkerLost(f"a worker process ended while {self._activity}: {self._why()}") from error
        return message

    def _why(self) -> str:
        code = self._process.wait()
        if code == -signal.SIGKILL:
            return "killed (SIGKILL), often by the system because memory ran out; use fewer --workers"
        if code in (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL):
            name = signal.Signals(-code).name
            return f"crashed in native code ({name}); if that happens again, repair the input or leave it out"
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def end(self, *, now: bool) -> None:
        """End the child: at once, even in the middle of a call, or an idle one by closing its socket."""
        if now:
            self._process.kill()  # the thread that waits for its answer sees the socket close
        else:
            self._connection.close()
        try:
            self._process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


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
        self._environment = os.environ if environment is None else environment
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
        except WorkerLost as error:
            if self.closed:
                raise _stopped() from error
            raise
        finally:
            self._give_back(worker)

    def _start(self) -> _Worker:
        with self._lock:
            if self.closed:
                raise _stopped()
            worker = _Worker(self._environment)
            self._started.add(worker)
        return worker

    def _give_back(self, worker: _Worker | None) -> None:
        if worker is not None and (worker.is_busy or not worker.is_alive()):
            # Dead, or abandoned during a call by an exception here: its next answer would be to the old call.
            with self._lock:
                self._started.discard(worker)
            worker.end(now=True)
            worker = None
        self._free.put(worker)

    def close(self, *, now: bool = False) -> None:
        """End all children; `now` kills the busy ones, whose callers get WorkerLost."""
        with self._lock:
            self.closed = True
            workers = list(self._started)
            self._started.clear()
        for worker in workers:
            worker.end(now=now)


def _stopped() -> WorkerLost:
    error = WorkerLost(STOPPED)
    mark_transient(error, transient=False)
    return error


def serve(descriptor: int) -> None:
    """Run in a child: answer calls until the parent is gone."""
    keep_pandas_out()
    memory.bound_this_process()
    connection = Connection(descriptor)
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, jobs), daemon=True).start()
    sending = threading.Lock()  # uploads report from threads of their own

    def listen(event: progress.Event) -> None:
        with sending:
            connection.send(("event", event))

    with progress.listening(listen):
        while True:
            answer = _answer(jobs.get())
            try:
                with sending:
                    connection.send_bytes(answer)
            except OSError:
                os._exit(1)  # the parent is gone


def _receive(connection: Connection, jobs: queue.SimpleQueue[bytes]) -> None:
    while True:
        try:
            jobs.put(connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(1)  # the parent is gone, so end, whatever the main thread does


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
            described = RuntimeError(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
            mark_transient(described, is_transient(error))
            return pickle.dumps(("error", described))
        return answer
