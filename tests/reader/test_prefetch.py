"""The background thread: how it ends, its errors, forks, and that no reference keeps the memory of batches."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.counts import count
from tests.reader.oracle import FIELDS, as_lists, assert_same, make_store
from tests.without_torch import needs_torch
from tokenloom.errors import StoreError
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.feed import HostFeed
from tokenloom.reader.loader import TokenLoader
from tokenloom.reader.prefetch import Prefetcher
from tokenloom.reader.shard_data import OpenShard

_ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def reference(folder: Path) -> str:
    return make_store(folder / "prefetch", (300, 90, 500, 12, 210))


def our_threads() -> list[threading.Thread]:
    """Return the threads that make batches ahead."""
    return [thread for thread in threading.enumerate() if thread.name == "tokenloom-prefetch"]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    gc.collect()
    before = set(our_threads())
    yield
    gc.collect()
    assert set(our_threads()) <= before


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_the_thread_ends_when_the_loader_is_dropped_without_the_garbage_collector(reference: str, packing: str) -> None:
    loader = TokenLoader(TokenDataset(reference, seq_len=8, packing=packing), 2)
    assert our_threads() == []  # none before the first batch
    next(loader)
    (thread,) = our_threads()
    gc.disable()
    try:
        del loader
        thread.join(20)
        assert not thread.is_alive()
    finally:
        gc.enable()


def test_the_thread_ends_at_the_last_batch_and_on_close(reference: str) -> None:
    data = TokenDataset(reference, seq_len=8)
    finished = TokenLoader(data, 4, num_epochs=1)
    assert len(list(finished)) == len(finished)
    assert our_threads() == []
    loader = TokenLoader(data, 4)
    for _ in range(3):
        next(loader)
        assert len(our_threads()) == 1
        loader.close()
        loader.close()
        assert our_threads() == []


def test_start_makes_batches_before_the_first_is_requested(reference: str) -> None:
    loader = TokenLoader(TokenDataset(reference, seq_len=8), 2, prefetch=4)
    loader.start()
    (thread,) = our_threads()
    loader.start()
    assert our_threads() == [thread]
    assert loader.state_dict()["samples"] == 0
    assert_same(next(loader), next(TokenLoader(TokenDataset(reference, seq_len=8), 2, prefetch=0)))
    loader.close()


# ---- errors


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_any_exception_of_the_thread_is_raised_where_batches_are_taken(
    reference: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = TokenLoader(TokenDataset(reference, seq_len=8), 2)
    with monkeypatch.context() as patch:

        def fail(*_: Any) -> Any:
            raise error

        patch.setattr(HostFeed, "make", fail)
        with pytest.raises(error):
            next(loader)
    assert_same(next(loader), next(TokenLoader(TokenDataset(reference, seq_len=8), 2, prefetch=0)))
    loader.close()


# ---- memory


def test_a_loader_continues_after_an_interrupt_during_close(reference: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = TokenLoader(TokenDataset(reference, seq_len=8), 2)
    expected = [next(loader)["labels"].tolist() for _ in range(40)]
    loader.close()
    before = set(threading.enumerate())
    again = TokenLoader(TokenDataset(reference, seq_len=8), 2)
    assert [next(again)["labels"].tolist() for _ in range(3)] == expected[:3]

    def interrupted(thread: threading.Thread, timeout: float | None = None) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "join", interrupted)
        with pytest.raises(KeyboardInterrupt):
            again.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()
    assert [next(again)["labels"].tolist() for _ in range(37)] == expected[3:]


def test_threads_can_share_a_dataset_with_more_shards_than_its_open_limit(tmp_path: Path) -> None:
    data = TokenDataset(make_store(tmp_path, [200] * 12), seq_len=8, packing="best_fit", max_open_shards=3)
    expected = [next(TokenLoader(data, 2, seed=seed, order="full"))["labels"].tolist() for seed in range(3)]
    found: dict[int, list[Any]] = {}

    def read(seed: int) -> None:
        loader = TokenLoader(data, 2, seed=seed, order="full", prefetch=(0, 3, None)[seed])
        found[seed] = [next(loader)["labels"].tolist() for _ in range(400)]
        loader.close()

    threads = [threading.Thread(target=read, args=(seed,), daemon=True) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [len(found.get(seed, [])) for seed in range(3)] == [400] * 3
    assert [found[seed][0] for seed in range(3)] == expected


_FORK_DURING_WINDOW = """
import os, sys, threading, time
from tokenloom.reader import window
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.loader import TokenLoader
reference, parent = sys.argv[1], os.getpid()
inside, proceed = threading.Event(), threading.Event()
make = window.Boundaries.__init__
def slow(*arguments):
    if os.getpid() == parent:
        inside.set()
        proceed.wait(60)
    make(*arguments)
window.Boundaries.__init__ = slow
data = TokenDataset(reference, seq_len=8, fields=("document_ids",))
loader = TokenLoader(data, 2, device="numpy")
loader.start()
assert inside.wait(60)
threading.Thread(target=next, args=(loader,), daemon=True).start()
time.sleep(0.5)  # until that thread waits for its batch, and has the loader's lock
child = os.fork()
if child == 0:
    next(TokenLoader(data, 2, prefetch=0, device="numpy"))
    next(loader)
    os._exit(7)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
proceed.set()
loader.close()
sys.exit(code)
"""


@pytest.mark.slow
def test_a_forked_child_does_not_deadlock_on_the_threads_of_its_parent(reference: str) -> None:
    command = [sys.executable, "-c", _FORK_DURING_WINDOW, reference]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 7, done.stderr


def test_a_forked_child_takes_no_lock_of_a_file_that_its_parent_opens_ahead(reference: str) -> None:
    class Locked(Future[OpenShard]):
        def cancel(self) -> bool:
            raise AssertionError("a thread of the parent may hold the lock for ever")

        done = cancel

    files = TokenDataset(reference, seq_len=4).shards
    files._ahead[0], files._pid = Locked(), -1
    files.drop(0)  # as another member of the mixture does, to make room
    files._ahead[0] = Locked()
    assert files[0].bytes
    assert not files._ahead
    files._ahead[1], files._pid = Locked(), -1
    files.touch([1], may_open=False)
    assert not files._ahead


def test_a_file_that_was_opened_ahead_is_taken_and_one_that_is_being_opened_is_not_waited_for(reference: str) -> None:
    files, opened, failed = TokenDataset(reference, seq_len=4).shards, Future[OpenShard](), Future[OpenShard]()
    opened.set_result(files.open(0))
    failed.set_exception(StoreError("the store is down"))
    files._ahead |= {0: opened, 1: Future(), 2: failed}
    files.touch([0, 1, 2], may_open=False)
    assert list(files.opened) == list(files.bytes) == [0]
    assert list(files._ahead) == [1, 2]


@pytest.mark.parametrize("prefetch", [0, 1, 32])
def test_threads_that_share_a_loader_take_each_batch_once(reference: str, prefetch: int) -> None:
    data = TokenDataset(reference, seq_len=4)
    expected = [as_lists(batch) for batch in TokenLoader(data, 2, num_epochs=1)]
    loader = TokenLoader(data, 2, num_epochs=1, prefetch=prefetch)
    taken: list[dict[str, Any]] = []

    def take_some(most: int) -> None:
        for _ in range(most):
            if (batch := next(loader, None)) is None:
                return
            taken.append(as_lists(batch))
            time.sleep(0)  # another thread's turn

    for most in (20, len(expected)):  # the first stops halfway: its state must be that of what was taken
        threads = [threading.Thread(target=take_some, args=(most,), daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert loader.state_dict()["samples"] == 2 * len(taken)
    assert sorted(map(str, taken)) == sorted(map(str, expected))


class Numbers:
    """Makes 0, 1, 2, ..., four at a time, and records which thread made each."""

    def __init__(self) -> None:
        self.makers: list[str] = []

    def make(self, wanted: int) -> list[int]:
        first = len(self.makers)
        self.makers += [threading.current_thread().name] * min(4, wanted)
        return list(range(first, len(self.makers)))


def take(prefetcher: Prefetcher[int], count: int, compute: Callable[[], object]) -> list[int]:
    """Take numbers from the prefetcher, and compute after each; return the numbers."""
    taken: list[int] = []
    while len(taken) < count:
        for number in prefetcher.take():
            taken.append(number)
            compute()
    return taken


OURS, THREADS = "MainThread", "tokenloom-prefetch"


@pytest.mark.parametrize(
    ("compute", "maker"),
    [(lambda: None, OURS), (lambda: time.sleep(0.002), THREADS)],
    ids=["asks at once", "sleeps"],
)
def test_a_consumer_that_asks_at_once_makes_items_itself(compute: Callable[[], object], maker: str) -> None:
    for _ in range(5):  # other processes use the machine too
        numbers = Numbers()
        prefetcher = Prefetcher(numbers.make, 16)
        taken = take(prefetcher, 400, compute)
        prefetcher.close()
        assert taken == list(range(len(taken)))  # whichever thread made them
        assert numbers.makers[0] == THREADS
        if numbers.makers[100:].count(maker) > 150:
            return
    pytest.fail(str(numbers.makers))


@pytest.mark.parametrize("prefetch", [0, 16])
def test_no_reference_cycle_keeps_the_memory_of_batches_or_maps(reference: str, prefetch: int) -> None:
    import_module("torch")  # its first import keeps the frames that lead to it
    gc.collect()
    gc.disable()
    try:
        data = TokenDataset(reference, seq_len=8, fields=FIELDS)
        loader = TokenLoader(data, 2, prefetch=prefetch)
        batch = next(loader)
        kept = [weakref.ref(each) for each in (batch["input_ids"], loader.stream, data.shards)]
        del batch
        assert kept[0]() is None
        loader.close()
        del loader, data
        assert [each() for each in kept] == [None, None, None]
    finally:
        gc.enable()


# ---- exits and forks, in separate interpreters: the timeout kills one that hangs, and its test fails

_EXITS = """
import gc, os, signal, sys, time
import torch  # once, and not in each child
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.loader import TokenLoader

reference, first, starts = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
packings = ("concat", "best_fit")
gc.freeze()  # so that the collector skips the imported modules at each exit

def make(number, prefetch=16):
    data = TokenDataset(reference, seq_len=8, packing=packings[number % 2])
    return TokenLoader(data, 2, seed=number, prefetch=prefetch)

def normal_end(number):
    global kept
    kept = make(number)
    for _ in range(number % 5):
        next(kept)
    return 0

def exit_in_loop(number):
    for step, batch in enumerate(make(number)):
        if step == number % 7:
            sys.exit(3)

def exception(number):
    loader = make(number)
    for step, batch in enumerate(loader):
        if step == number % 7:
            raise RuntimeError("odd")

def interrupt(number):
    loader = make(number)
    next(loader)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores the signal
    signal.raise_signal(signal.SIGINT)

def started_and_left(number):
    global kept
    kept = make(number)
    kept.start()
    return 0

def rows(loader, steps):
    return [next(loader)["labels"].tolist() for _ in range(steps)]

def fork(number):
    prefetch = (16, 0, 1)[number // 6 % 3]
    alone = rows(make(number, 0), 80)
    loader = make(number, prefetch)
    assert rows(loader, number % 9) == alone[: number % 9]
    child = os.fork()
    if number // 6 % 2 == 0:
        loader.start()  # as a training job does before it restores a checkpoint
    assert rows(loader, 60) == alone[number % 9 :][:60], "child" if child == 0 else "parent"
    if child == 0:
        sys.exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    return 0

ways = [(normal_end, 0), (exit_in_loop, 3), (exception, 1), (interrupt, 130), (started_and_left, 0), (fork, 0)]
sys.stderr = open(os.devnull, "w") if starts > 1 else sys.stderr
for number in range(first, first + starts):
    way, expected = ways[number % len(ways)]
    child = os.fork()  # no thread runs here, so the child exits like any other interpreter
    if child == 0:
        break
    deadline = time.monotonic() + 60
    while (status := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            print(way.__name__, number, "hangs")
            break
        time.sleep(0.01)
    else:
        code = os.waitstatus_to_exitcode(status[1])
        expected = -signal.SIGINT if code == -signal.SIGINT and expected == 130 else expected
        print("ended" if code == expected else f"{way.__name__} {number}: exit code {code}")
    sys.stdout.flush()
else:
    os._exit(0)
sys.stdout = open(os.devnull, "w")
sys.exit(way(number))
"""


@needs_torch
@pytest.mark.slow
def test_an_interpreter_can_exit_in_any_way_while_a_loader_works(reference: str, tmp_path: Path) -> None:
    script = tmp_path / "exits.py"
    script.write_text(_EXITS)
    starts = count(6, 204)
    command = [sys.executable, str(script), reference, "0", str(starts)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=count(200, 1500), check=False)
    assert done.stdout.splitlines() == ["ended"] * starts, done.stdout + done.stderr


_WHOLE = """
import sys
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.loader import TokenLoader

loader = TokenLoader(TokenDataset(sys.argv[1], seq_len=8, packing="best_fit"), 2, device="numpy")
for step, batch in enumerate(loader):
    if step == 3:
        {end}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "code", "message"),
    [("break", 0, ""), ("sys.exit(4)", 4, ""), ("raise RuntimeError('odd')", 1, "RuntimeError: odd")],
)
def test_an_interpreter_prints_nothing_but_its_own_error_when_it_exits(
    reference: str, end: str, code: int, message: str
) -> None:
    command = [sys.executable, "-W", "error", "-c", _WHOLE.format(end=end), reference]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    assert (done.stderr.strip().splitlines() or [""])[-1] == message
    assert done.stderr.count("Error") == bool(message)
