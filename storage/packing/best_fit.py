"""The packing "best_fit": whole documents, packed by best-fit-decreasing into samples of at most T + 1 tokens.

A document of more than T + 1 tokens is cut as by "document_padded" (base.py): each full chunk is a sample, and the
remainder is packed like a whole document. "best_fit_drop" leaves such a document out, and "best_fit_keep_start" keeps
its first T + 1 tokens. "best_fit_pad8" packs as if each item had the next multiple of 8 tokens; full chunks still
fill a sample. Planning 1,000,000 documents takes 0.06 to 0.15 s of processor time (T from 2,048 to 32,768),
little enough to do it again in each process.

Items are packed in decreasing order of size, ties in the order given. Each goes into the fullest bin that has room for
it, among equally full bins into the one that reached that level first, else into a new bin. The bin just filled
remains the fullest with room for the next item of the same size, so a bin with room r takes r // size of them in a row,
and a range of bins with equal room remains a range. Nothing loops over items.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass

import numpy as np

from tokenloom.storage.formats.arrays import AnyArray, AnyDtype, Int64s, UInt64s, offsets_of, ranges, ranges_of
from tokenloom.storage.packing.base import Packing, ShardPlan, cut_lengths

OVERLONG = ("split", "drop", "keep_start")
_COUNTED_SIZE = 2**20  # larger sizes are not counted in an array of all sizes


class BestFit(Packing):
    """Whole documents, as many as fit, with little padding.

    Args:
        overlong: how documents of more than T + 1 tokens are treated, one of OVERLONG.
        pad_documents: see Packing.
    """

    has_padding = True
    masks_documents = True

    def __init__(self, overlong: str = "split", pad_documents: int = 1) -> None:
        self.overlong, self.pad_documents = overlong, pad_documents
        option = "" if overlong == "split" else f"_{overlong}"
        self.name = f"best_fit{option}" + (f"_pad{pad_documents}" if pad_documents > 1 else "")
        if overlong == "drop":
            self.if_empty = "use a larger seq_len, or another overlong"

    def plan(self, seq_len: int, offsets: UInt64s) -> ShardPlan:
        """See Packing; it takes 4 bytes a sample and 8 a piece."""
        starts, lengths = self._cut_documents(seq_len, offsets)
        bin_of, num_bins = _bins_of(seq_len, self._padded(lengths, seq_len))
        # Samples are numbered by their first pieces, and bins as they were filled.
        first_pieces = np.full(num_bins, len(bin_of), bin_of.dtype)
        np.minimum.at(first_pieces, bin_of, np.arange(len(bin_of), dtype=bin_of.dtype))
        is_first = np.zeros(len(bin_of), bool)
        is_first[first_pieces] = True
        sample_of_bin = np.empty(num_bins, bin_of.dtype)
        sample_of_bin[bin_of[is_first]] = np.arange(num_bins, dtype=bin_of.dtype)
        samples = sample_of_bin.take(bin_of)  # (num_pieces,)
        row_offsets = np.zeros(num_bins + 1, bin_of.dtype)
        np.cumsum(np.bincount(samples, minlength=num_bins), out=row_offsets[1:])
        order = _stable_order(samples, num_bins)
        return _PiecePlan(row_offsets, starts.take(order), lengths.take(order))

    def count(self, seq_len: int, offsets: UInt64s) -> int:
        """See Packing; it takes half the time of a plan."""
        num_before, last = cut_lengths(self._kept(np.diff(offsets.astype(np.int64)), seq_len), seq_len)
        return int(num_before.sum()) + _fill(seq_len, self._padded(last[last > 0], seq_len)).num_bins

    def _cut_documents(self, seq_len: int, offsets: UInt64s) -> tuple[AnyArray, AnyArray]:
        """Cut the documents of a shard into full chunks and remainders: starts and lengths, (num_pieces,), in order.

        Both are uint32, or int64 of a shard with 2**32 tokens or more.
        """
        dtype = np.uint32 if int(offsets[-1]) < 2**32 else np.int64
        bounds: AnyArray = offsets.astype(dtype)
        lengths = self._kept(bounds[1:] - bounds[:-1], seq_len)
        starts = bounds[:-1]
        if not lengths.all():
            starts, lengths = starts[lengths > 0], lengths[lengths > 0]
        long = np.flatnonzero(lengths > seq_len + 1)
        if not len(long):
            return starts, lengths
        num_before, last = cut_lengths(lengths[long].astype(np.int64), seq_len)
        cut = np.repeat(starts[long], num_before) + (ranges_of(num_before) * seq_len).astype(dtype)
        starts[long] += (num_before * seq_len).astype(dtype)
        lengths[long] = last
        at = np.repeat(long, num_before)
        return np.insert(starts, at, cut), np.insert(lengths, at, seq_len + 1)

    def _kept(self, lengths: AnyArray, seq_len: int) -> AnyArray:
        """Count the tokens that each document of (n,) tokens keeps, from its start."""
        if self.overlong == "keep_start":
            return np.minimum(lengths, seq_len + 1)
        return np.where(lengths > seq_len + 1, 0, lengths) if self.overlong == "drop" else lengths

    def _padded(self, lengths: AnyArray, seq_len: int) -> AnyArray:
        """Round the tokens of pieces, (n,), up to what they take of a sample: the next multiple, or all of it."""
        multiple = self.pad_documents
        if multiple == 1:
            return lengths
        padded: AnyArray = (lengths + (multiple - 1)) // multiple * multiple
        return np.minimum(padded, seq_len + 1)


@dataclass(frozen=True)
class _PiecePlan:
    """Samples whose pieces are in order: those of sample i are row_offsets[i] to row_offsets[i + 1]."""

    row_offsets: AnyArray  # (num_samples + 1,)
    starts: AnyArray  # (num_pieces,)
    lengths: AnyArray  # (num_pieces,)

    def __len__(self) -> int:
        return len(self.row_offsets) - 1

    def pieces(self, samples: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        numbers = np.asarray(samples, dtype=np.int64)
        first = self.row_offsets[numbers].astype(np.int64)
        counts = self.row_offsets[numbers + 1].astype(np.int64) - first
        at = ranges(first, counts)
        return offsets_of(counts), self.starts[at].astype(np.int64), self.lengths[at].astype(np.int64)


def _bins_of(seq_len: int, lengths: AnyArray) -> tuple[AnyArray, int]:
    """Pack pieces by decreasing length, ties by position; return the bin of each, (n,), and the number of bins."""
    filling = _fill(seq_len, lengths)  # full chunks, the largest items, get bins of their own
    key_dtype = np.uint16 if seq_len < 2**16 else lengths.dtype
    keys = np.subtract(lengths.dtype.type(seq_len + 1), lengths, dtype=key_dtype, casting="unsafe")
    bin_of = np.empty(len(lengths), lengths.dtype)
    bin_of[_stable_order(keys, seq_len)] = filling.bins(lengths.dtype)
    return bin_of, filling.num_bins


def _fill(seq_len: int, lengths: AnyArray) -> Filling:
    """Pack pieces of (n,) lengths by decreasing length."""
    if lengths.max(initial=0) > _COUNTED_SIZE:
        sizes, counts = np.unique(lengths, return_counts=True)
    else:
        counts = np.bincount(lengths)
        sizes = np.flatnonzero(counts)
        counts = counts[sizes]
    return fill_bins(sizes[::-1], counts[::-1], seq_len + 1)


def _stable_order(values: AnyArray, largest: int) -> Int64s:
    """Sort as np.argsort(values, kind="stable") does, (n,) values in [0, largest], by radix.

    numpy sorts only 8 and 16 bits by radix; of more bits, its stable sort takes several times as long.
    """
    digit = np.uint8 if largest < 2**8 else np.uint16
    order = np.argsort(values.astype(digit, copy=False), kind="stable")
    if largest < 2**16:
        return order
    return order.take(_stable_order((values >> values.dtype.type(16)).take(order), largest >> 16))


@dataclass(frozen=True)
class Filling:
    """How bins were filled: run i puts the next `num_items[i]` items into the bins from `first_bins[i]` on."""

    num_bins: int
    first_bins: Int64s  # (num_runs,)
    items_per_bin: Int64s  # (num_runs,) items in each bin of the run; the last may have fewer
    num_items: Int64s  # (num_runs,)

    def bins(self, dtype: AnyDtype) -> AnyArray:
        """Number the bin of each item, (sum(num_items),), as packed; the type must hold the number of items."""
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
        capacity: of a bin, at least 1.

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
