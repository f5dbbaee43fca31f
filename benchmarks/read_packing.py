"""Measure packing for read.py: how long best_fit plans and first batches take, how near the plan is to the optimum."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from figures import Figure
from made_store import random_offsets, write_sparse_store
from read_sizes import BATCH, SEQ_LEN, Sizes
from tokenloom.storage.packing.packings import packing_named, shares_of

_NUM_SHARDS = 16
_FIRST_BATCH = f"""
import gc, sys, time
from tokenloom.reader import TokenDataset
from tokenloom.reader.loader import TokenLoader

gc.collect()  # otherwise the first collection after the imports, some 85 ms with torch, would be measured
data = TokenDataset(sys.argv[1], seq_len={SEQ_LEN}, packing="best_fit")
loader = TokenLoader(data, {BATCH}, rank=0, world_size=1)
begin = time.perf_counter()
next(loader)
print(time.perf_counter() - begin)
loader.close()
"""


def measure_packing(folder: Path, sizes: Sizes, rounds: int) -> list[Figure]:
    """Time best_fit, and compare its slots with those of a simple best-fit-decreasing."""
    return [*_plan_figures(sizes, rounds), *_first_batches(folder, sizes, rounds)]


def _first_batches(folder: Path, sizes: Sizes, rounds: int) -> list[Figure]:
    """Time the first batch of a process, which plans the shards of its samples."""
    offsets = random_offsets(np.random.default_rng(3), sizes.documents)
    reference = write_sparse_store(folder / "packed", _NUM_SHARDS, offsets)
    seconds = [_first_batch(reference) for _ in range(rounds)]
    what = f"{_NUM_SHARDS} shards of {sizes.documents:,} documents, best_fit: first batch"
    return [Figure(what, "s", seconds, "<= 1")]


def _first_batch(reference: str) -> float:
    """Return the seconds that the first batch of a new process takes."""
    command = [sys.executable, "-c", _FIRST_BATCH, reference]
    return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def _plan_figures(sizes: Sizes, rounds: int) -> list[Figure]:
    offsets = random_offsets(np.random.default_rng(2), sizes.documents)
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        plan = packing_named("best_fit").plan(SEQ_LEN, offsets)
        seconds.append(time.perf_counter() - begin)
    shares = shares_of(packing_named("best_fit"), SEQ_LEN, offsets)
    slots = best_fit_decreasing(np.diff(offsets).astype(np.int64))
    return [
        Figure(f"best_fit: plan of {sizes.documents:,} documents", "s", seconds, "<= 0.3"),
        Figure("best_fit: padding", "% of slots", [100 * shares.padding_share]),
        Figure("best_fit: samples", "of best-fit-decreasing", [len(plan) / slots], "<= 1.02"),
    ]


def best_fit_decreasing(lengths: NDArray[np.int64]) -> int:
    """Return the number of samples of a simple best-fit-decreasing; docs/concepts/packing.md defines a row."""
    full = (lengths - 1) // SEQ_LEN
    rests = lengths - full * SEQ_LEN
    items = np.sort(rests[(rests > 1) | (full == 0)])[::-1].tolist()
    bins, rooms, present = 0, [0] * (SEQ_LEN + 2), 0  # bins by room, and a bit for each room with a bin
    for item in items:
        fitting = present >> item
        if fitting:
            room = item + (fitting & -fitting).bit_length() - 1
            rooms[room] -= 1
            if not rooms[room]:
                present ^= 1 << room
        else:
            room, bins = SEQ_LEN + 1, bins + 1
        if room > item:
            rooms[room - item] += 1
            present |= 1 << (room - item)
    return bins + int(full.sum())
