"""The samples of packings that depend on where documents end: all but "concat"; plans.py defines them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokenloom.storage.formats.arrays import AnyArray, Int64s
from tokenloom.storage.packing.best_fit import Filling, fill_bins
from tokenloom.storage.packing.best_fit_plan import OrderedSamples, plan_best_fit
from tokenloom.storage.packing.chunks import Chunks, count_sizes, length_blocks


def num_document_samples(packing: str, seq_len: int, offsets: NDArray[np.uint64]) -> int:
    """Return how many samples a packing other than "concat" makes of a shard."""
    if packing == "best_fit":
        filling, num_full, _ = fill_samples(seq_len, offsets)
        return filling.num_bins + num_full
    padded = packing == "document_padded"
    return sum(int(Chunks.of(lengths, seq_len).num_samples(padded).sum()) for lengths in length_blocks(offsets))


def plan_documents(packing: str, seq_len: int, offsets: NDArray[np.uint64]) -> _DocumentPlan | OrderedSamples:
    """Return where the samples of a shard are under a packing other than "concat"."""
    if packing == "best_fit":
        return plan_best_fit(seq_len, offsets).ordered()
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


def fill_samples(seq_len: int, offsets: NDArray[np.uint64]) -> tuple[Filling, int, int]:
    """Return how "best_fit" fills samples, except those of full chunks; the number of these; the tokens filled in."""
    sizes, counts = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    num_full = 0
    for lengths in length_blocks(offsets):
        chunks = Chunks.of(lengths, seq_len)
        num_full += int(chunks.num_full.sum())
        block_sizes, block_counts = count_sizes(chunks.remainder[chunks.is_packed()])
        sizes.append(block_sizes)
        counts.append(block_counts)
    different, index = np.unique(np.concatenate(sizes), return_inverse=True)
    totals = np.zeros(len(different), dtype=np.int64)
    np.add.at(totals, index, np.concatenate(counts))
    filling = fill_bins(different[::-1], totals[::-1], seq_len + 1)
    return filling, num_full, int((different * totals).sum())


def _compact(values: Int64s, largest: int) -> AnyArray:
    return values.astype(np.uint32) if largest < 2**32 else values
