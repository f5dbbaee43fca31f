"""`tokenloom bench read`: how the training processes of a node get their batches, by way of feeding.

Every way runs in fresh spawned processes, one for each rank, that begin together: each takes a first batch, then a
batch and a sleep of the step's length again and again, then for a moment batches without a pause ("flat out"), then,
for comparison, rows copied and widened by the plainest loop ("bare"). All ranks do each of these at the same time.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenloom.bench_plot import draw, show
from tokenloom.commands import Json, _print
from tokenloom.errors import SpecError, TokenloomError

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

    from tokenloom.reader import TokenDataset

_SECONDS = 3.0  # of steps that count, unless their number is given
_FLAT_SECONDS = 1.0
_BARE_SECONDS = 0.5
_LEAST_STEPS = 20
_WARM_SHARE = 5  # a fifth as many steps before those that count
_BARE_BATCHES = 2048
_BARE_TOKENS = 2**26  # rows of the bare loop come from so many, more than a processor's cache holds

_barrier: Barrier | None = None  # of the ranks, in their processes


@dataclass(frozen=True)
class Task:
    """What one simulated rank reads, and how; workers is None for a TokenLoader."""

    reference: str
    split: str
    seq_len: int
    packing: str
    order: str
    batch_size: int
    step_seconds: float
    num_steps: int | None
    way: str = ""
    prefetch: int | None = None
    workers: int | None = None
    rank: int = 0
    world_size: int = 1
    cache_folder: str = ""  # of a remote store
    start_method: str = ""  # of workers: the main process's, as a spawned process spawns in its turn

    def open(self) -> TokenDataset:
        """Open the dataset, with the cache of this rank's node."""
        from tokenloom.reader import TokenDataset
        from tokenloom.storage.cache_limit import default_limit
        from tokenloom.storage.shard_cache import ShardCache

        folder = Path(self.cache_folder)
        cache = ShardCache(folder, default_limit(folder)) if self.cache_folder else None
        return TokenDataset(self.reference, self.split, self.seq_len, packing=self.packing, cache=cache)


def bench_read(
    reference: str,
    split: str,
    seq_len: int,
    packing: str,
    order: str,
    batch_size: int,
    step_ms: float,
    steps: int | None,
    workers: list[int],
    processes: int,
    nodes: list[int],
    plot: str | None,
    quiet: bool,
) -> Json:
    """Measure every way of feeding; print tables, draw a plot if asked to.

    Args:
        reference: STORE/DATASET@TAG_OR_VERSION.
        split: of the version.
        seq_len: T, at least 1.
        packing: as in TokenDataset.
        order: as in TokenLoader.
        batch_size: samples of a batch on one rank.
        step_ms: how long a rank computes, at least 0.
        steps: that count; None for as many as 3 seconds take, and at least 20.
        workers: numbers of workers of a torch DataLoader to compare with; 0 is one without.
        processes: ranks.
        nodes: numbers of nodes that the ranks are cut into; each divides `processes`.
        plot: an .svg file to write.
        quiet: print nothing.

    Raises:
        SpecError: an argument out of range.
        StoreError: there is no such version or split.
    """
    if wrong := [number for number in nodes if processes % number]:
        raise SpecError(f"--nodes {wrong[0]}: {processes} processes can't be cut into so many alike")
    if plot and (Path(plot).suffix != ".svg" or not Path(plot).absolute().parent.is_dir()):
        raise SpecError(f"--plot {plot}: write the name of an .svg file in a folder that is there")
    task = Task(reference, split, seq_len, packing, order, batch_size, step_ms / 1e3, steps, world_size=processes)
    task = replace(task, start_method=multiprocessing.get_start_method())
    with tempfile.TemporaryDirectory(prefix="tokenloom-bench-", ignore_cleanup_errors=True) as folder:
        data = _checked(replace(task, cache_folder=folder))
        task = replace(task, reference=data.reference)  # what @latest names may change
        runs = [(n, [n]) for n in nodes] if data.files.is_remote else [(nodes[0], nodes)]
        rows = [
            _measure(way, num_nodes, cuts, folder if data.files.is_remote else "")
            for num_nodes, cuts in runs
            for way in _ways(task, workers)
        ]
    result = {"reference": data.reference, "shards": len(data.counts), "samples": len(data)}
    result |= {name: getattr(task, name) for name in ("split", "seq_len", "packing", "order", "batch_size")}
    result |= {"processes": processes, "step_ms": step_ms, "ways": rows}
    show(result, quiet)
    if plot:
        Path(plot).write_text(draw(result), encoding="utf-8")
        _print(quiet, f"\nwrote {plot}")
    return result


def _checked(task: Task) -> TokenDataset:
    """Open what is to be read; raises SpecError if the options do not fit, before any process starts."""
    from tokenloom.reader.streams import make_stream

    try:
        data = task.open()
        make_stream(data, task.order, 0, None)
    except TokenloomError:
        raise
    except ValueError as error:
        raise SpecError(str(error)) from error
    return data


def _ways(task: Task, workers: Sequence[int]) -> list[Task]:
    loaders = [replace(task, way="TokenLoader, prefetch=0", prefetch=0), replace(task, way="TokenLoader, thread")]
    names = {0: "DataLoader in process", 1: "DataLoader, 1 worker"}
    return loaders + [
        replace(task, way=names.get(number, f"DataLoader, {number} workers"), workers=number)
        for number in dict.fromkeys(workers)
    ]


def _measure(way: Task, num_nodes: int, cuts: Sequence[int], folder: str) -> Json:
    """Run one way on all ranks; with a `folder`, each node has a cache of its own in it, empty at the start."""
    ranks = [replace(way, rank=rank) for rank in range(way.world_size)]
    if not folder:
        measured = _run(ranks)
        return _row(way, num_nodes, measured) | {"per_node": [_per_node(measured, cut) for cut in cuts]}
    with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as name:
        node_of = [rank * num_nodes // way.world_size for rank in range(way.world_size)]
        measured = _run([replace(rank, cache_folder=f"{name}/{node_of[rank.rank]}") for rank in ranks])
    return _row(way, num_nodes, measured) | {"per_node": [_per_node(measured, num_nodes)]}


def _run(tasks: Sequence[Task]) -> list[Json]:
    """Run all ranks, each in a new process; raises what the first that failed raised."""
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


def run_rank(task: Task) -> Json:
    """Do what one rank does, in step with the others; return what it measured."""
    barrier = _barrier
    assert barrier is not None  # a rank waits for all others, so each process gets one
    try:
        return _rank(task, barrier.wait)
    except BaseException:
        barrier.abort()  # nobody waits for a rank that has failed
        raise


def _rank(task: Task, meet: Callable[[], object]) -> Json:
    import tokenloom.reader.loader  # noqa: F401  # and torch: no time to a first batch holds their import
    from tokenloom.storage.cache_files import CacheFiles

    imports = _memory()
    begin = time.perf_counter()
    data = task.open()
    batches = _batches(task, data)
    next(batches)
    first_batch = time.perf_counter() - begin
    meet()
    begin, cpu = time.perf_counter(), _cpu_seconds()
    waits, walls = _take(batches, task.step_seconds, _SECONDS, task.num_steps)
    cpu_share = (_cpu_seconds() - cpu) / (time.perf_counter() - begin)
    downloaded = CacheFiles(Path(task.cache_folder), None).used() if task.cache_folder else None
    meet()
    flat = _take(batches, 0.0, _FLAT_SECONDS, None)[1] if task.step_seconds else walls
    memory = _memory()
    meet()  # while all still hold theirs
    return {
        "waits": waits[_warm(waits) :],
        "walls": walls[_warm(walls) :],
        "flat": flat[_warm(flat) :],
        "bare": _bare(data, task),
        "first_batch": first_batch,
        "memory": memory | ({"rss_of_imports": imports["rss"]} if imports else {}),
        "cpu_share": cpu_share,
        "shards": _shards(data, task, 1 + len(walls)),
        "downloaded": downloaded,
    }


def _batches(task: Task, data: TokenDataset) -> Iterator[Any]:
    from torch.utils.data import DataLoader

    from tokenloom.reader.loader import TokenLoader

    options: dict[str, Any] = {"order": task.order, "rank": task.rank, "world_size": task.world_size}
    if task.workers is None:
        return TokenLoader(data, task.batch_size, prefetch=task.prefetch, **options)
    stream = data.iterable(batch_size=task.batch_size, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # more workers than cores is for the user to see in the figures
        method = task.start_method if task.workers else None
        return iter(DataLoader(stream, batch_size=None, num_workers=task.workers, multiprocessing_context=method))


def _take(batches: Iterator[Any], step_seconds: float, seconds: float, num_steps: int | None) -> tuple[Any, Any]:
    """Take batches and compute; return the seconds of each wait, and of each whole step, warming up included."""
    waits, walls = [], []
    most = None if num_steps is None else num_steps + num_steps // _WARM_SHARE
    least, end = _LEAST_STEPS, time.perf_counter() + seconds * (1 + 1 / _WARM_SHARE)
    for taken in count():
        begin = time.perf_counter()
        if taken == most or (most is None and taken >= least and begin >= end):
            break
        batch = next(batches)
        got = time.perf_counter()
        if step_seconds:
            time.sleep(step_seconds)
        del batch
        waits.append(got - begin)
        walls.append(time.perf_counter() - begin)
    return np.array(waits), np.array(walls)


def _warm(values: Any) -> int:
    """Return how many of the first values do not count."""
    return len(values) // (_WARM_SHARE + 1)


def _bare(data: TokenDataset, task: Task) -> float:
    """Return the tokens per second of a loop that copies rows of one warm shard into new arrays of int64."""
    shard = data.shards[_shards(data, task, 1)[0]]
    tokens = np.frombuffer(shard.bytes[0 : shard.header.num_tokens * shard.header.token_bytes], data.format.dtype)
    row_tokens = task.seq_len + 1
    if len(tokens) <= row_tokens:  # packings of documents have samples of shards as small as that
        tokens = np.resize(tokens, row_tokens + 1)
    last = max(1, min(len(tokens), _BARE_TOKENS) - row_tokens)
    starts = np.random.default_rng(0).integers(0, last, (_BARE_BATCHES, task.batch_size)).tolist()
    taken, begin = 0, 0.0
    for round_index in count():  # the first warms up
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
    """Return the shards that the first batches of a rank lie in, in order of first need."""
    from tokenloom.reader.producer import Steps
    from tokenloom.reader.ranks import find_ranks
    from tokenloom.reader.streams import make_stream

    steps = Steps(find_ranks(task.rank, task.world_size), task.batch_size, None, True)
    ((_, shards),) = make_stream(data, task.order, 0, None).shards_of(steps.positions(0, num_batches))
    return shards


def _processes() -> list[str]:
    """Return the numbers of this process and of its workers, as folders of /proc."""
    return ["self", *(str(process.pid) for process in multiprocessing.active_children())]


def _memory() -> dict[str, float]:
    """Return resident, proportional and shared bytes of this process and its workers; nothing without a /proc."""
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
    """Return the seconds of processor time of this process and, where there is a /proc, of its workers."""
    total = time.process_time()
    try:
        for process in _processes()[1:]:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return total
    return total


def _row(way: Task, num_nodes: int, ranks: Sequence[Json]) -> Json:
    """Return the figures of one way: rates of a process are means over the ranks, quantiles are over all steps."""
    tokens = way.batch_size * way.seq_len
    rates, flats = ([tokens / rank[name].mean() for rank in ranks] for name in ("walls", "flat"))
    waits, walls = (np.concatenate([rank[name] for rank in ranks]) for name in ("waits", "walls"))
    memory = {name: float(np.mean([rank["memory"].get(name, 0) for rank in ranks])) for name in ranks[0]["memory"]}
    return {
        "way": way.way,
        "workers": way.workers,
        "nodes": num_nodes,
        "steps": len(walls),
        "tokens_per_second": float(np.mean(rates)),
        "tokens_per_second_in_all": float(np.sum(rates)),
        "flat_out_tokens_per_second": float(np.mean(flats)),
        "bare_tokens_per_second": float(np.mean([rank["bare"] for rank in ranks])),
        "flat_out_to_bare": float(np.mean([flat / rank["bare"] for flat, rank in zip(flats, ranks, strict=True)])),
        "idle_ratio": float(waits.sum() / walls.sum()),
        "batch_ms": _quantiles(waits),
        "step_ms": _quantiles(walls),
        "first_batch_seconds": max(rank["first_batch"] for rank in ranks),
        "memory_bytes": memory,
        "cpu_share": float(np.mean([rank["cpu_share"] for rank in ranks])),
    }


def _quantiles(seconds: Any) -> dict[str, float]:
    found = 1e3 * np.quantile(seconds, (0.5, 0.99, 1.0))
    return dict(zip(("p50", "p99", "max"), found.tolist(), strict=True))


def _per_node(ranks: Sequence[Json], num_nodes: int) -> Json:
    """Return what the ranks of each node touched up to the last step, together."""
    size = len(ranks) // num_nodes
    nodes = [ranks[first : first + size] for first in range(0, len(ranks), size)]
    shards = [len(set().union(*(rank["shards"] for rank in node))) for node in nodes]
    downloaded = [max(rank["downloaded"] for rank in node) for node in nodes] if ranks[0]["downloaded"] else None
    return {"nodes": num_nodes, "shards": shards, "bytes_downloaded": downloaded}
