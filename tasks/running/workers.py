"""Worker processes, used by the threads that run tasks.

A thread calls `WorkerPool.call(step, jobs)`: a free child process runs the step for each job and sends back the results
or an exception. A step is a function with its Build, which a child gets once for all jobs. The children are forks of a
small server, which imports libraries and loads a tokenizer once, for all of them. A fork takes milliseconds where
imports take 0.3 s, and shares the memory of what was loaded. The server is a program of its own, so neither it nor a
worker has the threads, locks or modules of the process that builds (Prefect among them), and a script that builds needs
no `if __name__ == "__main__"`, as it would with Python's own pools.

A child that is killed or crashes fails its call with WorkerLost, which names its input, and ends the build.
When the process that builds is gone, whatever ended it, the server kills the workers and ends.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from tokenloom.errors import WorkerLost, named_message_of
from tokenloom.process import num_cores
from tokenloom.tasks.running import progress

Job = TypeVar("Job")
Result = TypeVar("Result")
_Step = Callable[[Any], Any]

STOPPED = "the build is ending; this work was stopped"  # the message of calls in progress when another has failed
_KILLED, _NO_MEMORY = "killed, perhaps for memory", "out of memory"
_CLOSE_SECONDS = 2.0
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


def _command(function: str, descriptor: int) -> list[str]:
    """Return the command line of a program that calls a function of this module with a file descriptor."""
    program = f"import sys; sys.path[:] = sys.argv[2:]; from {__name__} import {function}; {function}(int(sys.argv[1]))"
    return [sys.executable, "-c", program, str(descriptor), *sys.path]


class _Server:
    """The process that starts workers with an environment."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._has_workers = False
        self._control, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                _command("_serve_forks", theirs.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=2,  # stdout is the caller's
                pass_fds=[theirs.fileno()],
                env=_DEFAULTS | dict(environment) | _ENVIRONMENT,
                start_new_session=True,  # Ctrl-C reaches all of a terminal's group; here, only the parent decides
            )

    def preload(self, function: Callable[[], object]) -> None:
        """Call a function in the server, for the modules and data that it loads; return at once.

        An error in it is left to the worker that needs the same.
        """
        with self._lock, contextlib.suppress(OSError):  # start_worker raises it too
            self._control.send(("preload", function))

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
        # Not closed: a thread that starts a worker could get the number of the descriptor for its own socket, and hang.
        with socket.fromfd(self._control.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as control:
            control.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_CLOSE_SECONDS)
        self._process.kill()  # if it has not ended
        self._process.wait()


_early: _Server | None = None


def start_early(function: Callable[[], object]) -> None:
    """Start the server of the first pool of this program, and call `function` there while this process imports."""
    global _early
    _early = _Server(os.environ)
    atexit.register(_early.close)  # it has our stderr, which stays open until the server ends
    _early.preload(function)


def preload_early(function: Callable[[], object]) -> None:
    """Call a function in the server that start_early has started, if it has; return at once."""
    if _early:
        _early.preload(function)


def _early_or_new_server(environment: Mapping[str, str] | None) -> _Server:
    """Return the server that start_early has started, once and only if `environment` is None, or else a new one."""
    global _early
    if environment is not None or _early is None:
        return _Server(os.environ if environment is None else environment)
    server, _early = _early, None
    return server


class _Worker:
    """A worker process and the socket to it, and the step that it ran last."""

    def __init__(self, server: _Server) -> None:
        self.activity = "starting"
        self._step: _Step | None = None
        self._connection, theirs = Pipe()
        with theirs:
            self.pid = server.start_worker(theirs)

    def call(self, step: _Step, jobs: Sequence[Any]) -> tuple[str, Any]:
        """Run a step for each job; return ("results", values) or ("error", exception).

        Raises OSError or EOFError if the process ends.
        """
        call = pickle.dumps((None if step is self._step else step, jobs))
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
        self._step = step if message[0] == "results" else None
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

    def call(self, step: Callable[[Job], Result], jobs: Sequence[Job]) -> list[Result]:
        """Run a step for each job, one after the other, in a free child; return the results. All must pickle.

        Raises the errors of the step, with the child's traceback as a note; WorkerLost if the child dies.
        """
        if self._server is None:
            return [step(job) for job in jobs]
        worker = self._free.get()
        try:
            worker = worker or _Worker(self._server)
            kind, value = worker.call(step, jobs)
        except (EOFError, OSError) as error:
            lost, worker = worker, None  # the next call starts another
            if self._closed:
                raise WorkerLost(STOPPED) from error
            raise self._lost(lost) from error
        finally:
            self._free.put(worker)
        if kind == "results":
            return value  # type: ignore[no-any-return]
        if isinstance(value, MemoryError):
            raise self._lost(worker, _NO_MEMORY) from value
        raise value

    def _lost(self, worker: _Worker | None, why: str = "") -> WorkerLost:
        """Return the error for a worker that ended, or for the server, which never started it."""
        activity = worker.activity if worker else "starting"
        why = why or _meaning(self._server.exit_code(worker.pid) if self._server and worker else None)
        if why in (_KILLED, _NO_MEMORY) and self.num_workers > 1:
            why += f": --workers {self.num_workers // 2}"
        return WorkerLost(
            f"a worker process ended while {activity}: {why}; run the same command again, finished work is kept"
        )

    def preload(self, function: Callable[[], object]) -> None:
        """Begin to call a function once for all children, before they start; with 0 processes do nothing."""
        if self._server:
            self._server.preload(function)

    def close(self, *_: object) -> None:
        """Kill all children; calls in progress raise WorkerLost."""
        self._closed = True
        if self._server:
            self._server.close()

    __exit__ = close


def _meaning(code: int | None) -> str:
    """Return the meaning of an exit code of a worker; None if the code is unknown."""
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


def _serve_forks(descriptor: int) -> NoReturn:
    """Run in the server: load modules and start workers as the parent asks, until it is gone."""
    from tokenloom.process import keep_pandas_out
    from tokenloom.storage.stores import remote_errors  # noqa: F401  (loaded once, for all workers)
    from tokenloom.tokenizers import base  # noqa: F401

    gc.disable()  # loading makes no garbage, and a collection would write to the pages that forks share
    keep_pandas_out()
    os.set_inheritable(descriptor, False)  # in a worker it would hide from the parent that the server has ended
    control, workers = Connection(descriptor), set[int]()
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            request, *arguments = control.recv()
            if request == "preload":
                with contextlib.suppress(Exception):  # the step that needs it raises the same
                    arguments[0]()
            elif request == "start":
                workers.add(pid := _start_worker(control))
                control.send(pid)
            else:
                (pid,) = arguments
                control.send(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                workers.discard(pid)
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    for pid in workers:
        os.waitpid(pid, 0)
    os._exit(0)


def _start_worker(control: Connection) -> int:
    """Start a worker for a connection that the parent sends; return its process id."""
    descriptor = recv_handle(control)
    try:
        tasks = Path("/proc/self/task")  # a fork copies one thread, and locks that others hold
        if not tasks.is_dir() or len(list(tasks.iterdir())) > 1:
            os.set_inheritable(descriptor, True)
            return os.posix_spawn(sys.executable, _command("_serve_calls", descriptor), os.environ)
        gc.freeze()
        pid = os.fork()
        if pid == 0:
            gc.enable()
            control.close()
            _serve_calls(descriptor)
        return pid
    finally:
        os.close(descriptor)


def _serve_calls(descriptor: int) -> NoReturn:
    """Run in a worker: answer calls from the connection with this file descriptor, until the parent is gone."""
    from tokenloom.process import keep_pandas_out
    from tokenloom.tasks.running import memory
    from tokenloom.tokenizers.base import WORKER_MARK

    keep_pandas_out()
    memory.bound_this_process()
    os.environ[WORKER_MARK] = "1"
    connection = Connection(descriptor)
    sending = threading.Lock()  # uploads report from threads of their own

    def send(message: bytes) -> None:
        with sending:
            connection.send_bytes(message)

    step: _Step | None = None
    with progress.listening(lambda event: send(pickle.dumps(("event", event)))):
        while True:
            try:
                step, answer = _answer(connection.recv_bytes(), step)
                send(answer)
            except (EOFError, OSError):
                os._exit(1)  # the parent is gone


def _answer(call: bytes, last: _Step | None) -> tuple[_Step | None, bytes]:
    """Run a step, or the last one again, for some jobs.

    Returns:
        The step, None after an error; and ("results", values) or ("error", exception), pickled.
    """
    from tokenloom.storage.stores.remote_errors import is_transient, mark_transient

    try:
        new, jobs = pickle.loads(call)  # noqa: S301  (our parent's bytes)
        step: Any = new or last
        return step, pickle.dumps(("results", [step(job) for job in jobs]))
    except BaseException as error:
        trace = traceback.format_exc()
        error.add_note("in a worker process:\n" + trace)
        described = RuntimeError(f"{named_message_of(error)}\n{trace}")
        for each in (error, described):
            mark_transient(each, is_transient(error))
            with contextlib.suppress(Exception):  # an error that can't be pickled is sent as its text
                answer = pickle.dumps(("error", each))
                pickle.loads(answer)  # noqa: S301  (our own bytes)
                return None, answer
        raise
