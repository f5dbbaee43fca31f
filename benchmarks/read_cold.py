"""Measure cold files for read.py: a loader's random rows, against four threads that only read the same rows."""

from __future__ import annotations

import functools
import gc
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from figures import Figure
from read_sizes import BATCH, SEQ_LEN, Sizes
from tokenloom.reader import TokenDataset
from tokenloom.reader.loader import TokenLoader
from tokenloom.reader.order import Order


def measure_cold(reference: str, sizes: Sizes, rounds: int, drop_caches: bool) -> list[Figure]:
    """Compare a loader on random rows of cold files with four threads that only read these rows."""
    ratios, rates, cached = [], [], []
    for seed in range(rounds):
        files, rows = rows_of(reference, sizes, seed)
        cached.append(make_cold(reference, drop_caches))
        bare = seconds_of_reads(files, rows)
        cached.append(make_cold(reference, drop_caches))
        data = TokenDataset(reference, seq_len=SEQ_LEN)
        loader = TokenLoader(data, BATCH, seed=seed, order="full", rank=0, world_size=1)
        begin = time.perf_counter()
        for _ in range(sizes.cold_rows // BATCH):
            next(loader)
        ratios.append(bare / (time.perf_counter() - begin))
        rates.append(sizes.cold_rows * SEQ_LEN / bare / 1e6)
        loader.close()
        del loader, data
    how = "drop_caches" if drop_caches else "posix_fadvise"
    return [
        Figure(f"cold ({how}): four threads of bare pread", "M tokens/s", rates),
        Figure("cold: share of rows still in memory", "", cached, "0"),
        Figure("cold: thread, order full", "of bare pread", ratios, ">= 0.5"),
    ]


def seconds_of_reads(files: list[int], rows: NDArray[np.int64]) -> float:
    """Read rows on four threads, close the files, return the seconds."""
    with ThreadPoolExecutor(4) as pool:
        begin = time.perf_counter()
        list(pool.map(functools.partial(read_rows, files), np.array_split(rows, 64)))
        seconds = time.perf_counter() - begin
    for file in files:
        os.close(file)
    return seconds


def rows_of(reference: str, sizes: Sizes, seed: int) -> tuple[list[int], NDArray[np.int64]]:
    """Return open files, and the rows that a loader with this seed reads: (n, 2) file and first byte."""
    data = TokenDataset(reference, seq_len=SEQ_LEN)
    samples = Order("full", data.counts, seed).samples(np.arange(sizes.cold_rows))
    shards = data.shards_of(samples)
    local = samples - (np.cumsum(data.counts) - data.counts)[shards]
    files = [os.open(data.files.path(i), os.O_RDONLY) for i in range(len(data.counts))]
    return files, np.stack([shards, data.shards[0].header.tokens_start + 2 * SEQ_LEN * local], axis=1)


def read_rows(files: list[int], rows: NDArray[np.int64]) -> None:
    """Read rows, given as (n, 2) file and first byte, one by one."""
    for file, start in rows.tolist():
        os.pread(files[file], 2 * (SEQ_LEN + 1), start)


def make_cold(reference: str, drop_caches: bool) -> float:
    """Evict the shards from the system's cache; return the share of probed rows that are still in memory."""
    gc.collect()  # mapped pages can't be evicted
    if drop_caches:
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
    kept = []
    for path in sorted(Path(reference).rglob("*.tok")):
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
