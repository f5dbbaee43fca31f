"""Exact best-fit-decreasing bin packing over integers, a group of equal items and a range of equal bins at a time.

Items are packed in decreasing order of size, ties in the order given. Each goes into the fullest bin that has room for
it, among equally full bins into the one that reached that level first, else into a new bin. The bin just filled
remains the fullest with room for the next item of the same size, so a bin with room r takes r // size of them in a row,
and a range of bins with equal room remains a range. Nothing loops over items: 1,000,000 of them take 0.01 to 0.6 s.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass

import numpy as np

from tokenloom.storage.formats.arrays import AnyArray, AnyDtype, Int64s


@dataclass(frozen=True)
class Filling:
    """How bins were filled: run i puts the next `num_items[i]` items into the bins from `first_bins[i]` on."""

    num_bins: int
    first_bins: Int64s  # (num_runs,)
    items_per_bin: Int64s  # (num_runs,) items in each bin of the run; the last may have fewer
    num_items: Int64s  # (num_runs,)

    def bins(self, dtype: AnyDtype) -> AnyArray:
        """Return the bin of each item, (sum(num_items),) of `dtype`, which must hold the number of items, as packed."""
        num_items = self.num_items
        first_items = np.cumsum(num_items) - num_items
        bins: AnyArray = np.arange(int(num_items.sum()), dtype=dtype)
        bins -= np.repeat(first_items.astype(dtype), num_items)
        bins //= np.repeat(self.items_per_bin.astype(dtype), num_items)
        bins += np.repeat(self.first_bins.astype(dtype), num_items)
        return bins


def fill_bins(sizes: Int64s, counts: Int64s, capacity: int) -> Filling:
    """Pack items by best-fit-decreasing.

    Args:
        sizes: (n,) different sizes, decreasing, each in [1, capacity].
        counts: (n,) items of each size, at least 1.
        capacity: what a bin holds, at least 1.

    Example: sizes [4, 3, 2], counts [1, 1, 2], capacity 6: 4 + 2, 3 + 2
    """
    free = _FreeBins(capacity)
    runs: list[tuple[int, int, int]] = []
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        while count:
            room, first, num_bins = free.take(size, count)
            per_bin = room // size
            full = min(num_bins, count // per_bin)
            over = count - full * per_bin if full < num_bins else 0  # one more bin gets these and has room for more
            used = full + (over > 0)
            free.put(room - per_bin * size, first, full)
            free.put(room - over * size, first + full, used - full)
            free.put_back(room, first + used, num_bins - used)
            runs.append((first, per_bin, full * per_bin + over))
            count -= full * per_bin + over
    table = np.array(runs, dtype=np.int64).reshape(-1, 3)
    return Filling(free.num_bins, table[:, 0], table[:, 1], table[:, 2])


class _FreeBins:
    """Bins that have room: ranges of bins by their room, the oldest range first."""

    def __init__(self, capacity: int) -> None:
        self.num_bins = 0
        self._capacity = capacity
        self._ranges: dict[int, deque[tuple[int, int]]] = {}
        self._rooms: list[int] = []  # ascending; as fast as a set of bits, as far as T = 1,048,576

    def take(self, size: int, count: int) -> tuple[int, int, int]:
        """Remove a range of the fullest bins with room for `size`, or make bins for `count` items: (room, first, n)."""
        at = bisect_left(self._rooms, size)
        if at == len(self._rooms):
            num_new = -(-count // (self._capacity // size))
            self.num_bins += num_new
            return self._capacity, self.num_bins - num_new, num_new
        room = self._rooms[at]
        first, num_bins = self._ranges[room].popleft()
        if not self._ranges[room]:
            del self._ranges[room], self._rooms[at]
        return room, first, num_bins

    def put(self, room: int, first: int, num_bins: int) -> None:
        """Add the bins [first, first + num_bins), whose room is `room` now."""
        if num_bins and room:
            self._of(room).append((first, num_bins))

    def put_back(self, room: int, first: int, num_bins: int) -> None:
        """Add bins that were taken and not used."""
        if num_bins:
            self._of(room).appendleft((first, num_bins))

    def _of(self, room: int) -> deque[tuple[int, int]]:
        if room not in self._ranges:
            self._ranges[room] = deque()
            insort(self._rooms, room)
        return self._ranges[room]
