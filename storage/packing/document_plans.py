"""The samples of packings that depend on where documents end: all but "concat"; plans.py defines them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenloom.storage.formats.arrays import AnyArray, Int64s
from tokenloom.storage.packing.best_fit import Filling, fill_bins
from tokenloom.storage.packing.chunks import Chunks, cut_documents, length_blocks


def num_document_samples(packing: str, seq_len: int, offsets: NDArray[np.uint64]) -> int:
    """Return how many samples a packing other than "concat" makes of a shard."""
    if packing == "best_fit":
        filling, num_full, _ = fill_samples(seq_len, offsets)
        return filling.num_bins + num_full
    padded = packing == "document_padded"
    return sum(int(Chunks.of(lengths, seq_len).num_samples(padded).sum()) for lengths in length_blocks(offsets))


def plan_documents(packing: str, seq_len: int, offsets: NDArray[np.uint64]) -> _DocumentPlan | _PiecePlan:
    """Return where the samples of a shard are under a packing other than "concat"."""
    if packing == "best_fit":
        return _plan_best_fit(seq_len, offsets)
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
class _PiecePlan:
    row_offsets: AnyArray  # (num_samples + 1,)
    starts: AnyArray  # (num_pieces,)
    lengths: AnyArray  # (num_pieces,)

    def __len__(self) -> int:
        return len(self.row_offsets) - 1

    def pieces(self, samples: Int64s) -> tuple[Int64s, Int64s, Int64s]:
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
        block_sizes, block_counts = np.unique(chunks.remainder[chunks.is_packed()], return_counts=True)
        sizes.append(block_sizes)
        counts.append(block_counts)
    different, index = np.unique(np.concatenate(sizes), return_inverse=True)
    totals = np.zeros(len(different), dtype=np.int64)
    np.add.at(totals, index, np.concatenate(counts))
    filling = fill_bins(different[::-1], totals[::-1], seq_len + 1)
    return filling, num_full, int((different * totals).sum())


def _plan_best_fit(seq_len: int, offsets: NDArray[np.uint64]) -> _PiecePlan:
    filling, _, _ = fill_samples(seq_len, offsets)
    starts, lengths = cut_documents(seq_len, offsets)
    bins = np.empty(len(starts), dtype=np.int64)  # (num_pieces,) of each piece, in the order of the shard
    packed = np.flatnonzero(lengths <= seq_len)
    # Decreasing sizes, ties by position; int32 is sorted faster.
    order = np.argsort(-lengths[packed].astype(np.int32), kind="stable")
    bins[packed[order]] = filling.bins()
    full = np.flatnonzero(lengths > seq_len)
    bins[full] = filling.num_bins + np.arange(len(full))
    samples = _numbered_by_first(bins, filling.num_bins + len(full))
    order = np.argsort(samples, kind="stable")
    row_offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(np.bincount(samples))])
    return _PiecePlan(
        _compact(row_offsets, len(starts)),
        _compact(starts, int(offsets[-1]))[order],
        _compact(lengths, seq_len + 1)[order],
    )


def _numbered_by_first(bins: Int64s, num_bins: int) -> Int64s:
    """Return bins numbered by the position of their first piece: [7, 3, 7, 0] -> [0, 1, 0, 2]."""
    first = np.full(num_bins, len(bins))
    np.minimum.at(first, bins, np.arange(len(bins)))
    is_first = np.zeros(len(bins), dtype=np.int64)
    is_first[first] = 1
    numbered: Int64s = (np.cumsum(is_first) - 1)[first][bins]
    return numbered


def _compact(values: Int64s, largest: int) -> AnyArray:
    return values.astype(np.uint32) if largest < 2**32 else values
