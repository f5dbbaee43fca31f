"""The samples of packings that depend on where documents end: all but "concat"; plans.py defines them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenloom.storage.formats.arrays import AnyArray, Int64s
from tokenloom.storage.packing.best_fit import Filling, fill_bins
from tokenloom.storage.packing.chunks import Chunks, cut_documents, length_blocks

_COUNTED_SIZE = 2**20  # the largest size whose items are counted in an array of all sizes


def num_document_samples(packing: str, seq_len: int, offsets: NDArray[np.uint64]) -> int:
    """Return how many samples a packing other than "concat" makes of a shard."""
    if packing == "best_fit":
        filling, num_full, _ = fill_samples(seq_len, offsets)
        return filling.num_bins + num_full
    padded = packing == "document_padded"
    return sum(int(Chunks.of(lengths, seq_len).num_samples(padded).sum()) for lengths in length_blocks(offsets))


def plan_documents(packing: str, seq_len: int, offsets: NDArray[np.uint64]) -> _DocumentPlan | PiecePlan:
    """Return where the samples of a shard are under a packing other than "concat"."""
    if packing == "best_fit":
        return plan_best_fit(seq_len, offsets)
    return _DocumentPlan(seq_len, offsets, padded=packing == "document_padded")


class _DocumentPlan:
    def __init__(self, seq_len: int, offsets: NDArray[np.uint64], padded: bool) -> None:
        self._seq_len, self._offsets = seq_len, offsets
        counts = [np.zeros(0, dtype=np.int64)]
        for lengths in length_blocks(offsets):
            counts.append(Chunks.of(lengths, seq_len).num_samples(padded))
        ends = np.cumsum(np.concatenate(counts), dtype=np.int64)
        self._len = int(ends[-1]) if len(ends) else 0
        self._ends = _compact(ends, self._len)  # (num_documents,)

    def __len__(self) -> int:
        return self._len

    def pieces(self, samples: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        numbers = np.asarray(samples, dtype=np.int64)
        # With another type than the ends, each call would convert all of them.
        documents = np.searchsorted(self._ends, numbers.astype(self._ends.dtype), side="right")
        before = np.where(documents > 0, self._ends[documents - 1].astype(np.int64), 0)
        starts = self._offsets[documents].astype(np.int64) + (numbers - before) * self._seq_len
        ends = self._offsets[documents + 1].astype(np.int64)
        return np.arange(len(numbers) + 1), starts, np.minimum(ends - starts, self._seq_len + 1)


@dataclass(frozen=True)
class PiecePlan:
    """Samples of several pieces: those of sample i are row_offsets[i] to row_offsets[i + 1]."""

    row_offsets: AnyArray  # (num_samples + 1,)
    starts: AnyArray  # (num_pieces,)
    lengths: AnyArray  # (num_pieces,)

    def __len__(self) -> int:
        return len(self.row_offsets) - 1

    def pieces(self, samples: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """See ShardPlan."""
        numbers = np.asarray(samples, dtype=np.int64)
        first = self.row_offsets[numbers].astype(np.int64)
        counts = self.row_offsets[numbers + 1].astype(np.int64) - first
        row_offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
        at = np.arange(row_offsets[-1]) + np.repeat(first - row_offsets[:-1], counts)
        return row_offsets, self.starts[at].astype(np.int64), self.lengths[at].astype(np.int64)


def fill_samples(seq_len: int, offsets: NDArray[np.uint64]) -> tuple[Filling, int, int]:
    """Return how "best_fit" fills samples, except those of full chunks; the number of these; the tokens filled in."""
    sizes, counts = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    num_full = 0
    for lengths in length_blocks(offsets):
        chunks = Chunks.of(lengths, seq_len)
        num_full += int(chunks.num_full.sum())
        block_sizes, block_counts = _count_sizes(chunks.remainder[chunks.is_packed()])
        sizes.append(block_sizes)
        counts.append(block_counts)
    different, index = np.unique(np.concatenate(sizes), return_inverse=True)
    totals = np.zeros(len(different), dtype=np.int64)
    np.add.at(totals, index, np.concatenate(counts))
    filling = fill_bins(different[::-1], totals[::-1], seq_len + 1)
    return filling, num_full, int((different * totals).sum())


def _count_sizes(sizes: Int64s) -> tuple[Int64s, Int64s]:
    """Return the different sizes, ascending, and how many there are of each."""
    if sizes.max(initial=0) > _COUNTED_SIZE:
        return np.unique(sizes, return_counts=True)
    counts = np.bincount(sizes)
    different = np.flatnonzero(counts)
    return different, counts[different]


def plan_best_fit(seq_len: int, offsets: NDArray[np.uint64]) -> PiecePlan:
    """Return where the samples of a shard are under "best_fit"."""
    starts, lengths = cut_documents(seq_len, offsets)
    dtype = starts.dtype.type
    sizes, counts = _count_sizes(lengths)  # full chunks, the largest items, get samples of their own
    filling = fill_bins(sizes[::-1], counts[::-1], seq_len + 1)
    packed = _stable_order(dtype(seq_len + 1) - lengths, seq_len)  # decreasing sizes, ties by position
    bin_of = np.empty(len(starts), dtype)
    bin_of[packed] = filling.bins(starts.dtype)
    first_of_bin = np.full(filling.num_bins, len(starts), dtype)
    np.minimum.at(first_of_bin, bin_of, np.arange(len(starts), dtype=dtype))
    # Samples are numbered by their first pieces, and have their pieces in the order of the shard.
    first = first_of_bin.take(bin_of)
    order = _stable_order(first, len(starts))
    row_offsets = np.append(np.flatnonzero(first.take(order) == order), len(order)).astype(dtype)
    return PiecePlan(row_offsets, starts.take(order), lengths.take(order))


def _stable_order(values: AnyArray, largest: int) -> Int64s:
    """Return np.argsort(values, kind="stable") of (n,) values in [0, largest], by radix.

    numpy sorts only 8 and 16 bits by radix; of more bits, its stable sort takes several times as long.
    """
    digit = np.uint8 if largest < 2**8 else np.uint16
    order = np.argsort(values.astype(digit), kind="stable")
    if largest < 2**16:
        return order
    return order.take(_stable_order((values >> values.dtype.type(16)).take(order), largest >> 16))


def _compact(values: Int64s, largest: int) -> AnyArray:
    return values.astype(np.uint32) if largest < 2**32 else values
