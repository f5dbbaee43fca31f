"""Measure packing for read.py: how long a best_fit plan takes, and how close it comes to the optimum."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from figures import Figure
from made_store import random_offsets
from read_sizes import SEQ_LEN, Sizes
from tokenloom.storage.packing.plans import plan_shard
from tokenloom.storage.packing.shares import shares_of


def measure_packing(sizes: Sizes, rounds: int) -> list[Figure]:
    """Time a best_fit plan and compare its slots with those of a simple best-fit-decreasing."""
    offsets = random_offsets(np.random.default_rng(2), sizes.documents)
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        plan = plan_shard("best_fit", SEQ_LEN, int(offsets[-1]), offsets)
        seconds.append(time.perf_counter() - begin)
    shares = shares_of("best_fit", SEQ_LEN, int(offsets[-1]), offsets)
    slots = best_fit_decreasing(np.diff(offsets).astype(np.int64))
    return [
        Figure(f"best_fit: plan of {sizes.documents:,} documents", "s", seconds, "<= 2"),
        Figure("best_fit: padding", "% of slots", [100 * shares.padding_share]),
        Figure("best_fit: samples", "of best-fit-decreasing", [len(plan) / slots], "<= 1.02"),
    ]


def best_fit_decreasing(lengths: NDArray[np.int64]) -> int:
    """Return the number of samples of a simple best-fit-decreasing; storage/packing/plans.py defines an item."""
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
