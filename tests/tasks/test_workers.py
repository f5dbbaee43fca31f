"""Worker processes: their results, their ends, and what they do not affect."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest

from tests.servers.processes import is_running
from tokenloom.errors import GateFailed, InputError, WorkerLost, WorkError
from tokenloom.tasks.building.check import compare_documents
from tokenloom.tasks.building.plan import cut_file
from tokenloom.tasks.building.shuffle import shuffle_shard
from tokenloom.tasks.building.tokenization import tokenize_partition
from tokenloom.tasks.rules import load_transform
from tokenloom.tasks.running import progress
from tokenloom.tasks.running.workers import WorkerPool

_ROOT = Path(__file__).parent.parent.parent

_remembered: list[int] = []  # in this process


class PanicException(BaseException):
    """Like what a native library raises when it panics: not an Exception."""


class Counted:
    """A value of a step that counts how often it is pickled."""

    def __init__(self) -> None:
        self.num_pickled = 0

    def __reduce__(self) -> tuple[type[Counted], tuple[()]]:
        self.num_pickled += 1
        return Counted, ()


def double_with(_: Counted, number: int) -> int:
    return 2 * number


class Unpicklable(Exception):
    """An exception that cannot be unpickled, because `args` does not rebuild it."""

    def __init__(self, place: str, rule: str) -> None:
        super().__init__(f"{place}: {rule}")


def process_id(_: Any) -> int:
    return os.getpid()


def double(number: int) -> int:
    return 2 * number


def raise_error(error: BaseException) -> NoReturn:
    raise error


def raise_unpicklable(place: str) -> NoReturn:
    raise Unpicklable(place, "is not allowed")


def return_unpicklable(_: str) -> Any:
    return threading.Lock()


def end_with(code: int) -> NoReturn:
    os._exit(code)


def kill_itself(_: None) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang(_: None) -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    time.sleep(3600)


def sleep_after_note(note: Path) -> None:
    note.write_text(str(os.getpid()))
    time.sleep(3600)


def type_of_array(_: None) -> str:
    return str(pa.array([1]).type)


def import_pandas_and_make_array(_: None) -> list[float | None]:
    load_transform("tests.tasks.pandas_transform:identity")
    return pa.array(sys.modules["pandas"].Series([1.0, float("nan")])).to_pylist()  # type: ignore[no-any-return]


def loaded_modules(_: None) -> set[str]:
    return set(sys.modules)


def remember(value: int) -> None:
    _remembered.append(value)


def remembered(_: None) -> list[int]:
    return _remembered


def remember_and_start_thread(value: int) -> None:
    remember(value)
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()


def sleep_an_hour() -> None:
    time.sleep(3600)


def parent_id(_: None) -> int:
    return os.getppid()


def print_and_report(number: int) -> int:
    print("printed in a worker", flush=True)
    os.write(1, b"written in a worker\n")
    progress.report(progress.Advanced(num_documents=1, num_bytes=number, num_tokens=2 * number))
    return number


def call(pool: WorkerPool, step: Callable[[Any], Any], job: Any) -> Any:
    """Run a step for one job."""
    (result,) = pool.call(step, [job])
    return result


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(1) as one:
        yield one


def _wait_for(path: Path) -> int:
    while not path.exists() or not path.read_text():
        time.sleep(0.005)
    return int(path.read_text())


def test_calls_run_in_a_child_and_return_its_results(pool: WorkerPool) -> None:
    assert [call(pool, double, number) for number in range(5)] == [0, 2, 4, 6, 8]
    first, second = call(pool, process_id, None), call(pool, process_id, None)
    assert first == second != os.getpid()


def test_a_child_gets_a_step_with_its_values_once_and_again_after_an_error() -> None:
    value = Counted()
    step = partial(double_with, value)
    with WorkerPool(1) as one:
        assert [one.call(step, [number]) for number in range(5)] == [[0], [2], [4], [6], [8]]
        assert value.num_pickled == 1
        with pytest.raises(TypeError, match="unsupported operand"):
            one.call(step, [None])
        assert [one.call(step, [number]) for number in range(2)] == [[0], [2]]
        assert value.num_pickled == 2


def test_as_many_children_work_at_once_as_the_pool_has() -> None:
    with WorkerPool(2) as two, ThreadPoolExecutor(2) as threads:
        barrier = threading.Barrier(2)

        def call_often(_: int) -> list[int]:
            barrier.wait()
            return [call(two, process_id, None) for _ in range(20)]

        first, second = threads.map(call_often, range(2))
    assert len({*first, *second}) == 2


def test_a_pool_without_workers_runs_calls_in_this_process() -> None:
    with WorkerPool(0) as none:
        assert call(none, process_id, None) == os.getpid()
        with pytest.raises(InputError, match="here"):
            call(none, raise_error, InputError("here"))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a value"),
        InputError("a file: a rule"),
        WorkerLost("as if"),
        WorkError("a/file.spill"),
        ConnectionResetError("of a store, not of the socket"),
        KeyboardInterrupt(),
        PanicException("a panic"),
        OSError(28, "No space left on device"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_exceptions_of_every_kind_come_back_as_themselves(pool: WorkerPool, error: BaseException) -> None:
    before = call(pool, process_id, None)
    with pytest.raises(type(error)) as caught:
        call(pool, raise_error, error)
    assert type(caught.value) is type(error)
    assert caught.value.args == error.args
    assert call(pool, process_id, None) == before


def test_exceptions_keep_their_attributes_and_the_traceback_of_the_child(pool: WorkerPool) -> None:
    with pytest.raises(GateFailed, match="a gate") as caught:
        call(pool, raise_error, GateFailed("a gate", "0123abcd", []))
    assert caught.value.version == "0123abcd"
    notes = "".join(caught.value.__notes__)
    assert "in a worker process" in notes
    assert "raise_error" in notes


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (raise_unpicklable, "Unpicklable: row 3: is not allowed"),
        (lambda row: threading.Lock, "pickle"),
        (return_unpicklable, "pickle"),
    ],
    ids=["exception", "function", "result"],
)
def test_what_cannot_be_pickled_raises_and_the_pool_continues(
    function: Callable[[str], Any], said: str, pool: WorkerPool
) -> None:
    with pytest.raises(Exception, match=said) as caught:
        call(pool, function, "row 3")
    assert not isinstance(caught.value, WorkerLost)
    assert call(pool, double, 4) == 8


def test_a_child_that_ends_loses_its_call_and_says_why(pool: WorkerPool) -> None:
    functions: list[tuple[Callable[[Any], Any], Any, str]] = [
        (kill_itself, None, r"while starting: killed, perhaps for memory; run the same command again"),
        (hang, None, "hung in native code"),
        (end_with, 0, "exit code 0"),
        (end_with, 7, "exit code 7"),
    ]
    for function, job, reason in functions:
        call(pool, process_id, None)
        for _ in range(2):  # the second call gets another child
            with pytest.raises(WorkerLost, match=reason):
                call(pool, function, job)
        assert call(pool, double, 4) == 8


def test_closing_now_ends_calls_in_progress(tmp_path: Path) -> None:
    pool, notes = WorkerPool(2), [tmp_path / "first", tmp_path / "second"]
    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(call, pool, sleep_after_note, note) for note in notes]
        pids = [_wait_for(note) for note in notes]
        pool.close()
    assert [type(call.exception()) for call in calls] == [WorkerLost] * 2
    assert not any(map(is_running, pids))
    with pytest.raises(WorkerLost, match="ending"):
        call(pool, double, 1)


def test_a_closed_pool_keeps_its_descriptors_for_threads_that_may_still_use_them() -> None:
    """The number of a closed one may be that of another thread's next socket, for whose answer it would then wait."""
    before, pool = _descriptors(), WorkerPool(1)
    call(pool, double, 1)
    opened = _descriptors() - before
    pool.close()
    assert opened
    assert opened <= _descriptors()


def _descriptors() -> set[tuple[str, str]]:
    """List the numbers of this process's sockets, and which sockets they are."""
    found = ((path.name, os.readlink(path)) for path in Path("/proc/self/fd").iterdir() if path.is_symlink())
    return {(number, target) for number, target in found if target.startswith("socket:")}


def test_closing_now_does_not_wait_for_what_is_preloaded(tmp_path: Path) -> None:
    pool = WorkerPool(1)
    pool.preload(partial(sleep_after_note, tmp_path / "note"))
    with ThreadPoolExecutor() as threads:
        future = threads.submit(call, pool, double, 1)
        server = _wait_for(tmp_path / "note")
        pool.close()
        with pytest.raises(WorkerLost, match="ending"):
            future.result()
    assert not is_running(server)


def test_children_are_gone_after_the_block() -> None:
    with WorkerPool(1) as one:
        pid = call(one, process_id, None)
        assert is_running(pid)
    assert not is_running(pid)


def test_what_is_preloaded_is_there_in_every_child() -> None:
    with WorkerPool(1) as one:
        one.preload(partial(raise_error, ValueError("left to the call that needs it")))
        one.preload(partial(remember, 5))
        assert call(one, remembered, None) == [5]


def test_children_are_new_programs_if_their_server_has_threads() -> None:
    """A fork copies one thread and the locks of all: a child could wait for a lock forever."""
    with WorkerPool(1) as one:
        one.preload(partial(remember_and_start_thread, 5))
        assert call(one, double, 21) == 42
        assert call(one, remembered, None) == []
        with pytest.raises(WorkerLost, match="exit code 7"):
            call(one, end_with, 7)


def test_an_early_server_ends_with_its_program_even_while_it_loads() -> None:
    code = (
        "from tests.tasks.test_workers import sleep_an_hour\n"
        "from tokenloom.tasks.running.workers import start_early\n"
        "start_early(sleep_an_hour)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=_ROOT, capture_output=True, check=True)  # until stderr ends
    assert done.stderr == b""


def test_all_processes_end_with_their_parent(tmp_path: Path) -> None:
    code = (
        "import pathlib\n"
        "from tests.tasks.test_workers import WorkerPool, call, parent_id, sleep_after_note\n"
        "pool = WorkerPool(1)\n"
        "print(call(pool, parent_id, None), flush=True)\n"
        f"call(pool, sleep_after_note, pathlib.Path({str(tmp_path / 'note')!r}))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=_ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        server, child = int(process.stdout.readline()), _wait_for(tmp_path / "note")
        process.kill()
    while is_running(server) or is_running(child):
        time.sleep(0.005)


def test_children_import_neither_prefect_nor_pydantic_nor_torch_nor_pandas(pool: WorkerPool) -> None:
    steps: list[Any] = [cut_file, tokenize_partition, shuffle_shard, compare_documents]
    for step in steps:
        with pytest.raises((AttributeError, TypeError)):  # the job is missing, but the step's modules are loaded now
            call(pool, step, None)
    assert call(pool, type_of_array, None) == "int64"  # pyarrow would import pandas
    loaded = call(pool, loaded_modules, None)
    assert "tokenloom" in loaded
    packages = {name.partition(".")[0] for name in loaded}
    assert packages.isdisjoint({"prefect", "pydantic", "torch", "fastapi", "pandas"})


def test_pyarrow_recognizes_the_pandas_of_a_transform() -> None:
    with WorkerPool(1) as own:
        assert call(own, import_pandas_and_make_array, None) == [1.0, None]


def test_events_of_a_child_reach_the_listeners_here(pool: WorkerPool) -> None:
    events: list[progress.Event] = []
    with progress.listening(events.append):
        assert call(pool, print_and_report, 3) == 3
    assert events == [progress.Advanced(num_documents=1, num_bytes=3, num_tokens=6)]


def test_output_of_children_goes_only_to_stderr() -> None:
    code = (
        "from tests.tasks.test_workers import WorkerPool, call, print_and_report\n"
        "with WorkerPool(1) as pool: print(call(pool, print_and_report, 5))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=_ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "5\n"
    assert "printed in a worker" in done.stderr
    assert "written in a worker" in done.stderr


def test_interrupt_of_the_group_leaves_children_to_their_parent() -> None:
    """Ctrl-C reaches every process of a terminal's group; only the parent decides what ends."""
    code = (
        "import os, signal\n"
        "from tests.tasks.test_workers import WorkerPool, call, process_id\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "with WorkerPool(1) as pool:\n"
        "    before = call(pool, process_id, None)\n"
        "    os.killpg(0, signal.SIGINT)\n"
        "    print(call(pool, process_id, None) == before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=_ROOT, capture_output=True, text=True, check=True, start_new_session=True
    )
    assert done.stdout == "True\n"
