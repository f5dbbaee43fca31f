"""Measure cold files for read.py: a loader, against a plain loop over numpy maps, and against reading in order."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from figures import Figure
from read_sizes import BATCH, SEQ_LEN, Sizes
from tokenloom.reader import TokenDataset
from tokenloom.reader.loader import TokenLoader

_FIRST = 50  # batches
_BLOCK = 2**20


def measure_cold(reference: str, sizes: Sizes, rounds: int, drop_caches: bool) -> list[Figure]:
    """Compare loaders with the plain loop, both on random rows of cold files, and with reading all bytes in order."""
    paths = sorted(Path(reference).rglob("*.tok"))
    first: dict[str, list[float]] = {"block": [], "full": []}
    total: dict[str, list[float]] = {"block": [], "full": []}
    in_order: list[float] = []
    cached: list[float] = []
    for seed in range(rounds):
        for order in first:
            cached.append(make_cold(paths, drop_caches))
            plain = seconds_of(plain_batches(paths, seed), sizes.cold_batches)
            cached.append(make_cold(paths, drop_caches))
            ours = seconds_of(loader_batches(reference, seed, order), sizes.cold_batches)
            first[order].append(float(plain[_FIRST - 1] / ours[_FIRST - 1]))
            total[order].append(float(plain[-1] / ours[-1]))
        cached.append(make_cold(paths, drop_caches))
        in_order.append(seconds_in_order(paths) / float(ours[-1]))
    cached.append(make_cold(paths, drop_caches))
    waits = np.diff(seconds_of(loader_batches(reference, rounds, "block"), sizes.cold_batches, 0.005)) - 0.005
    how = "drop_caches" if drop_caches else "posix_fadvise"
    rows: list[tuple[str, str, list[float], str]] = [(f"cold ({how}): share still in memory", "", cached, "0")]
    for order in first:
        rows.append((f"cold: order {order}, the first {_FIRST} batches", "of plain maps", first[order], ">= 1"))
        rows.append((f"cold: order {order}, {sizes.cold_batches:,} batches", "of plain maps", total[order], ">= 1"))
    rows.append(("cold: order full, all batches", "of reading in order", in_order, ""))
    p99 = float(np.quantile(waits[_FIRST:], 0.99) * 1e3)
    rows.append(("cold: order block, consumer sleeps 5 ms: next, quantile 0.99", "ms", [p99], "<= 2"))
    return [Figure(*row) for row in rows]


def seconds_of(batches: Iterator[object], count: int, step: float = 0.0) -> NDArray[np.float64]:
    """Take batches, and sleep `step` seconds after each; return when each came, (count,) seconds from the start."""
    begin, ends = time.perf_counter(), []
    for _ in islice(batches, count):
        ends.append(time.perf_counter() - begin)
        if step:
            time.sleep(step)
    return np.array(ends)


def plain_batches(paths: list[Path], seed: int) -> Iterator[object]:
    """Yield batches of random rows, copied out of memory maps in the simplest way."""
    maps = [np.memmap(path, np.uint16, "r", offset=4096) for path in paths]
    rows_of_map = min(len(tokens) for tokens in maps) // SEQ_LEN - 1
    places = np.random.default_rng(seed).permutation(rows_of_map * len(maps)).tolist()
    for first in range(0, len(places) - BATCH + 1, BATCH):
        rows = np.empty((BATCH, SEQ_LEN + 1), np.int64)
        for row, place in zip(rows, places[first : first + BATCH], strict=True):
            start = place // len(maps) * SEQ_LEN
            row[:] = maps[place % len(maps)][start : start + SEQ_LEN + 1]
        yield rows


def loader_batches(reference: str, seed: int, order: str) -> Iterator[object]:
    """Yield the batches of a loader; making it counts as part of the first one."""
    loader = TokenLoader(TokenDataset(reference, seq_len=SEQ_LEN), BATCH, seed=seed, order=order, rank=0, world_size=1)
    try:
        yield from loader
    finally:
        loader.close()


def seconds_in_order(paths: list[Path]) -> float:
    """Read all files one after the other, 1 MiB at a time; return the seconds."""
    begin, buffer = time.perf_counter(), bytearray(_BLOCK)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.perf_counter() - begin


def make_cold(paths: list[Path], drop_caches: bool) -> float:
    """Evict files from the system's cache; return the share of probed places that are still in memory."""
    gc.collect()  # mapped pages can't be evicted
    if drop_caches:
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
    kept = []
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        places = np.linspace(0, os.fstat(file).st_size - 4096, 100).astype(np.int64).tolist()
        kept += [is_cached(file, place) for place in places]
        os.close(file)
    return statistics.mean(kept)


def is_cached(file: int, place: int) -> bool:
    """Return whether a byte of a file is in memory; False if the system can't say."""
    try:
        return os.preadv(file, [bytearray(1)], place, os.RWF_NOWAIT) > 0
    except OSError:
        return False
