"""The plan of a shard under "best_fit": which pieces of documents each sample has; plans.py defines them.

Ordering the pieces by sample takes as long as the rest of a plan, so it is done later. Until then, the pieces of a few
samples are found among all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenloom.storage.formats.arrays import AnyArray, Int64s, ranges_of
from tokenloom.storage.packing.best_fit import fill_bins
from tokenloom.storage.packing.chunks import count_sizes, cut_documents


class BestFitPlan:
    """Where the samples of a shard are, see ShardPlan; several threads may use it."""

    def __init__(self, filled: FilledSamples) -> None:
        self._samples: FilledSamples | OrderedSamples = filled

    def __len__(self) -> int:
        return len(self._samples)

    def pieces(self, samples: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """See ShardPlan; until the pieces are ordered, this takes 2 ms for 1,000,000 of them."""
        return self._samples.pieces(samples)

    def ordered(self) -> OrderedSamples:
        """Order the pieces by sample, unless they are, and return them."""
        if isinstance(samples := self._samples, FilledSamples):
            samples = self._samples = samples.ordered()
        return samples


@dataclass(frozen=True)
class OrderedSamples:
    """Samples whose pieces are in order: those of sample i are row_offsets[i] to row_offsets[i + 1]."""

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
        at = np.repeat(first, counts) + ranges_of(counts)
        return row_offsets, self.starts[at].astype(np.int64), self.lengths[at].astype(np.int64)


@dataclass(frozen=True)
class FilledSamples:
    """Samples as bins, numbered as they were filled; the pieces have the order of the shard."""

    starts: AnyArray  # (num_pieces,)
    lengths: AnyArray  # (num_pieces,)
    bin_of: AnyArray  # (num_pieces,)
    first_pieces: Int64s  # (num_samples,) of each sample; samples are numbered in this order

    def __len__(self) -> int:
        return len(self.first_pieces)

    def pieces(self, samples: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """See ShardPlan."""
        numbers = np.asarray(samples, dtype=np.int64)
        is_sample, is_bin = np.zeros((2, len(self)), bool)  # not np.unique, which imports numpy.ma
        is_sample[numbers] = True
        different = np.flatnonzero(is_sample)
        bins = self.bin_of[self.first_pieces[different]]
        is_bin[bins] = True
        at = np.flatnonzero(is_bin.take(self.bin_of))
        return self._ordered(at, bins).pieces(np.searchsorted(different, numbers))

    def ordered(self) -> OrderedSamples:
        """Return all samples with their pieces in order."""
        return self._ordered(np.arange(len(self.bin_of)), self.bin_of[self.first_pieces])

    def _ordered(self, at: Int64s, bins: AnyArray) -> OrderedSamples:
        """Return n samples in order: `bins`, (n,), are theirs, and `at`, ascending, are their pieces."""
        dtype = self.starts.dtype
        number = np.empty(len(self), dtype)  # of the samples of these bins
        number[bins] = np.arange(len(bins), dtype=dtype)
        numbers = number.take(self.bin_of.take(at))
        order = at.take(_stable_order(numbers, len(bins)))
        row_offsets = np.zeros(len(bins) + 1, dtype)
        np.cumsum(np.bincount(numbers, minlength=len(bins)), out=row_offsets[1:])
        return OrderedSamples(row_offsets, self.starts.take(order), self.lengths.take(order))


def plan_best_fit(seq_len: int, offsets: NDArray[np.uint64]) -> BestFitPlan:
    """Return where the samples of a shard are under "best_fit".

    Args:
        seq_len: T, in [1, 2**31).
        offsets: (num_documents + 1,) of the shard; raises ValueError if they decrease.
    """
    starts, lengths = cut_documents(seq_len, offsets)
    dtype = starts.dtype.type
    sizes, counts = count_sizes(lengths)  # full chunks, the largest items, get samples of their own
    filling = fill_bins(sizes[::-1], counts[::-1], seq_len + 1)
    # Packed in decreasing order of size, ties by position.
    key_dtype = np.uint16 if seq_len < 2**16 else starts.dtype
    keys = np.subtract(dtype(seq_len + 1), lengths, dtype=key_dtype, casting="unsafe")
    bin_of = np.empty(len(starts), dtype)
    bin_of[_stable_order(keys, seq_len)] = filling.bins(starts.dtype)
    return BestFitPlan(FilledSamples(starts, lengths, bin_of, _first_pieces(bin_of, filling.num_bins)))


def _first_pieces(bin_of: AnyArray, num_bins: int) -> Int64s:
    """Return the first pieces of all bins, (num_bins,), in the order of the shard."""
    first = np.full(num_bins, len(bin_of), bin_of.dtype)
    np.minimum.at(first, bin_of, np.arange(len(bin_of), dtype=bin_of.dtype))
    is_first = np.zeros(len(bin_of), bool)
    is_first[first] = True
    return np.flatnonzero(is_first)


def _stable_order(values: AnyArray, largest: int) -> Int64s:
    """Return np.argsort(values, kind="stable") of (n,) values in [0, largest], by radix.

    numpy sorts only 8 and 16 bits by radix; of more bits, its stable sort takes several times as long.
    """
    digit = np.uint8 if largest < 2**8 else np.uint16
    order = np.argsort(values.astype(digit, copy=False), kind="stable")
    if largest < 2**16:
        return order
    return order.take(_stable_order((values >> values.dtype.type(16)).take(order), largest >> 16))
