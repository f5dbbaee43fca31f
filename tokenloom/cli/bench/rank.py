"""One simulated rank of `tokenloom bench read`: what it does and measures in its own process."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

    from tokenloom.reader import TokenDataset

_SECONDS = 3.0  # duration of the measured steps, unless their number is given
_FLAT_SECONDS = 1.0
_BARE_SECONDS = 0.5
_MIN_STEPS = 20
_WARM_SHARE = 5  # one fifth as many warm-up steps run before the measured steps
_BARE_BATCHES = 2048
_BARE_TOKENS = 2**26  # the bare loop reads rows from these; a processor's cache holds fewer

_barrier: Barrier | None = None  # shared by the ranks; set in each rank's process


@dataclass(frozen=True)
class Task:
    """What one simulated rank reads, and how.

    It computes `step_ms` in each step, and measures `num_steps`; None for as many as take 3 seconds, and at least 20.
    `workers` is None for a TokenLoader.
    """

    reference: str
    split: str
    seq_len: int
    packing: str
    order: str
    batch_size: int
    step_ms: float
    num_steps: int | None
    way: str = ""
    prefetch: int | None = None
    workers: int | None = None
    rank: int = 0
    world_size: int = 1
    cache_folder: str = ""  # shards of a remote store are downloaded into it
    start_method: str = ""  # the main process's, for DataLoader workers: the rank itself was spawned

    def open(self) -> TokenDataset:
        """Open the dataset with the cache of this rank's node."""
        from tokenloom.reader import TokenDataset
        from tokenloom.storage.cache.cache_settings import default_limit
        from tokenloom.storage.cache.shard_cache import ShardCache

        folder = Path(self.cache_folder)
        cache = ShardCache(folder, default_limit(folder)) if self.cache_folder else None
        return TokenDataset(self.reference, self.split, self.seq_len, packing=self.packing, cache=cache)


@dataclass(frozen=True)
class Measured:
    """What one rank measured, without warm-up steps. Times are in seconds, rates in tokens per second."""

    waits: Any  # (num_steps,) time spent waiting for a batch
    walls: Any  # (num_steps,) time of the whole step
    flat: Any  # (num_flat_steps,) time of a step without computing
    bare: float
    first_batch: float
    memory: dict[str, float]
    cpu_share: float
    shards: list[int]
    downloaded: int | None


def run_ranks(tasks: Sequence[Task]) -> list[Measured]:
    """Run all ranks, each in a new process; raise the error of the first rank that failed."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(len(tasks))
    with ProcessPoolExecutor(len(tasks), context, _join, (barrier,)) as pool:
        futures = [pool.submit(run_rank, task) for task in tasks]
        wait(futures)
    errors = [error for future in futures if (error := future.exception())]
    if errors:
        raise next((error for error in errors if not isinstance(error, threading.BrokenBarrierError)), errors[0])
    return [future.result() for future in futures]


def _join(barrier: Barrier) -> None:
    global _barrier
    _barrier = barrier


def run_rank(task: Task) -> Measured:
    """Run one rank in step with the others; return what it measured."""
    barrier = _barrier
    assert barrier is not None  # _join sets it in each process
    try:
        return _measure_rank(task, barrier.wait)
    except BaseException:
        barrier.abort()  # the others must not wait for this rank
        raise


def _measure_rank(task: Task, meet: Callable[[], object]) -> Measured:
    import tokenloom.reader.loader  # noqa: F401  # imports torch too, which must not count in the time to the first batch
    from tokenloom.storage.cache.cache_files import CacheFiles

    imports = _resident_memory()
    begin = time.perf_counter()
    data = task.open()
    batches = _batches(task, data)
    next(batches)
    first_batch = time.perf_counter() - begin
    meet()
    begin, cpu = time.perf_counter(), _cpu_seconds()
    waits, walls = _take(batches, task.step_ms / 1e3, _SECONDS, task.num_steps)
    cpu_share = (_cpu_seconds() - cpu) / (time.perf_counter() - begin)
    downloaded = CacheFiles(Path(task.cache_folder), None).used() if task.cache_folder else None
    meet()
    flat = _take(batches, 0.0, _FLAT_SECONDS, None)[1] if task.step_ms else walls
    memory = _resident_memory()
    meet()  # every rank measures its memory before any rank frees it
    return Measured(
        waits=waits[_num_warm_up(waits) :],
        walls=walls[_num_warm_up(walls) :],
        flat=flat[_num_warm_up(flat) :],
        bare=_bare_rate(data, task),
        first_batch=first_batch,
        memory=memory | ({"rss_of_imports": imports["rss"]} if imports else {}),
        cpu_share=cpu_share,
        shards=_shards(data, task, 1 + len(walls)),
        downloaded=downloaded,
    )


def _batches(task: Task, data: TokenDataset) -> Iterator[Any]:
    from torch.utils.data import DataLoader

    from tokenloom.reader.loader import TokenLoader

    options: dict[str, Any] = {"order": task.order, "rank": task.rank, "world_size": task.world_size}
    if task.workers is None:
        return TokenLoader(data, task.batch_size, prefetch=task.prefetch, **options)
    stream = data.iterable(batch_size=task.batch_size, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of more workers than cores; the figures show what that costs
        method = task.start_method if task.workers else None
        return iter(DataLoader(stream, batch_size=None, num_workers=task.workers, multiprocessing_context=method))


def _take(batches: Iterator[Any], step_seconds: float, seconds: float, num_steps: int | None) -> tuple[Any, Any]:
    """Take batches and compute; return the seconds of each wait and of each whole step, warm-up included."""
    waits, walls = [], []
    max_steps = None if num_steps is None else num_steps + num_steps // _WARM_SHARE
    end = time.perf_counter() + seconds * (1 + 1 / _WARM_SHARE)
    for taken in count():
        begin = time.perf_counter()
        if taken == max_steps or (max_steps is None and taken >= _MIN_STEPS and begin >= end):
            break
        batch = next(batches)
        got = time.perf_counter()
        if step_seconds:
            time.sleep(step_seconds)
        del batch
        waits.append(got - begin)
        walls.append(time.perf_counter() - begin)
    return np.array(waits), np.array(walls)


def _num_warm_up(values: Any) -> int:
    """Return how many of the first values belong to the warm-up."""
    return len(values) // (_WARM_SHARE + 1)


def _bare_rate(data: TokenDataset, task: Task) -> float:
    """Return the tokens per second of a loop that copies rows of one warm shard into new arrays of int64."""
    shard = data.shards[_shards(data, task, 1)[0]]
    tokens = np.frombuffer(shard.bytes[0 : shard.header.num_tokens * shard.header.token_bytes], data.format.dtype)
    row_tokens = task.seq_len + 1
    if len(tokens) <= row_tokens:  # document packings make samples even of a shard this small
        tokens = np.resize(tokens, row_tokens + 1)
    last = max(1, min(len(tokens), _BARE_TOKENS) - row_tokens)
    starts = np.random.default_rng(0).integers(0, last, (_BARE_BATCHES, task.batch_size)).tolist()
    taken, begin = 0, 0.0
    for round_index in count():  # the first round warms up
        for places in starts:
            rows = np.empty((task.batch_size, row_tokens), np.int64)
            for row, start in zip(rows, places, strict=True):
                row[:] = tokens[start : start + row_tokens]
            _ = rows[:, :-1], rows[:, 1:]
            taken += 1
            if round_index and taken % 16 == 0 and time.perf_counter() - begin > _BARE_SECONDS:
                return taken * task.batch_size * task.seq_len / (time.perf_counter() - begin)
        if not round_index:
            taken, begin = 0, time.perf_counter()
    raise AssertionError("count() has no end")


def _shards(data: TokenDataset, task: Task, num_batches: int) -> list[int]:
    """Return the shards of a rank's first batches, in the order in which they are needed."""
    from tokenloom.reader.order import Steps
    from tokenloom.reader.ranks import find_ranks
    from tokenloom.reader.streams import make_stream

    steps = Steps(find_ranks(task.rank, task.world_size), task.batch_size, None, True)
    ((_, shards),) = make_stream(data, task.order, 0, None).shards_of(steps.positions(0, num_batches))
    return shards


def _resident_memory() -> dict[str, float]:
    """Return the resident, proportional and shared bytes of this process and its workers; {} without /proc."""
    names = {"Rss": "rss", "Pss": "pss", "Shared_Clean": "shared", "Shared_Dirty": "shared"}
    found: dict[str, float] = {}
    try:
        for process in _processes():
            for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]:
                if name := names.get(line.partition(":")[0]):
                    found[name] = found.get(name, 0) + 1024 * int(line.split()[1])
    except OSError:
        return {}
    return found


def _cpu_seconds() -> float:
    """Return the processor time in seconds of this process and, with /proc, of its workers."""
    total = time.process_time()
    try:
        for process in _processes()[1:]:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return total
    return total


def _processes() -> list[str]:
    """Return the names of the folders in /proc of this process and its workers."""
    return ["self", *(str(process.pid) for process in multiprocessing.active_children())]
