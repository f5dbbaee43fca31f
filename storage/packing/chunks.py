"""Documents cut into chunks of T + 1 tokens, each sharing one token with the next, and a remainder; see plans.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenloom.storage.formats.arrays import AnyArray, Int64s, ranges_of

_DECREASING = "the document offsets must not decrease"
_BLOCK = 2**20  # documents at a time, which bounds the memory
_COUNTED_BLOCK = 2**16  # sizes at a time; np.bincount converts them
_COUNTED_SIZE = 2**20  # the largest size whose items are counted in an array of all sizes


def length_blocks(offsets: NDArray[np.uint64]) -> Iterator[Int64s]:
    """Yield the tokens of each document, a block of documents at a time; raises ValueError if offsets decrease.

    Args:
        offsets: (num_documents + 1,) of a shard.
    """
    for start in range(0, len(offsets) - 1, _BLOCK):
        block = offsets[start : start + _BLOCK + 1].astype(np.int64)
        lengths = block[1:] - block[:-1]
        if lengths.min() < 0:
            raise ValueError(_DECREASING)
        yield lengths


@dataclass(frozen=True)
class Chunks:
    """The chunks of each document: full ones, then a remainder, which begins with the last token of the one before."""

    num_full: Int64s  # (num_documents,)
    remainder: Int64s  # (num_documents,) tokens, 1 where the full chunks hold all tokens

    @classmethod
    def of(cls, lengths: Int64s, seq_len: int) -> Chunks:
        """Cut documents of (num_documents,) `lengths` for samples of `seq_len` + 1 tokens."""
        num_full = np.maximum(lengths - 1, 0) // seq_len
        return cls(num_full, lengths - num_full * seq_len)

    def num_samples(self, padded: bool) -> Int64s:
        """Return the samples of each document, (num_documents,); `padded` adds one for a remainder of at least 2."""
        return self.num_full + (self.remainder > 1) if padded else self.num_full

    def is_packed(self) -> NDArray[np.bool_]:
        """Return which documents have a piece besides full chunks: a remainder, or a whole document of any length."""
        is_packed: NDArray[np.bool_] = (self.remainder > 1) | ((self.num_full == 0) & (self.remainder == 1))
        return is_packed


def cut_documents(seq_len: int, offsets: NDArray[np.uint64]) -> tuple[AnyArray, AnyArray]:
    """Return starts and lengths of all full chunks and remainders of a shard, (num_pieces,), in order.

    Both are uint32, or int64 of a shard with 2**32 tokens or more. Raises ValueError if offsets decrease.
    """
    dtype = np.uint32 if int(offsets[-1]) < 2**32 else np.int64
    if (offsets[1:] < offsets[:-1]).any():
        raise ValueError(_DECREASING)
    bounds: AnyArray = offsets.astype(dtype)
    lengths: AnyArray = bounds[1:] - bounds[:-1]
    starts = bounds[:-1]
    if not lengths.all():
        starts, lengths = starts[lengths > 0], lengths[lengths > 0]
    long = np.flatnonzero(lengths > seq_len + 1)
    if not len(long):
        return starts, lengths
    num_full = (lengths[long].astype(np.int64) - 2) // seq_len  # before the last piece of each long document
    cut = np.repeat(starts[long], num_full) + (ranges_of(num_full) * seq_len).astype(dtype)
    skipped = (num_full * seq_len).astype(dtype)
    starts[long] += skipped
    lengths[long] -= skipped
    return _with_pieces(starts, lengths, np.repeat(long, num_full), cut, seq_len + 1)


def _with_pieces(
    starts: AnyArray, lengths: AnyArray, before: Int64s, new_starts: AnyArray, new_length: int
) -> tuple[AnyArray, AnyArray]:
    """Insert pieces of one length before pieces at `before`, which ascend; np.insert would take twice as long."""
    at = before + np.arange(len(before))
    is_old = np.ones(len(starts) + len(at), bool)
    is_old[at] = False
    old = np.flatnonzero(is_old)  # used twice, and faster than the mask
    all_starts, all_lengths = np.empty(len(is_old), starts.dtype), np.full(len(is_old), new_length, lengths.dtype)
    all_starts[at], all_starts[old] = new_starts, starts
    all_lengths[old] = lengths
    return all_starts, all_lengths


def count_sizes(sizes: AnyArray) -> tuple[Int64s, Int64s]:
    """Return the different sizes of (n,) sizes, ascending, and how many there are of each."""
    largest = int(sizes.max(initial=0))
    if largest > _COUNTED_SIZE:
        return np.unique(sizes, return_counts=True)
    counts = np.zeros(largest + 1, np.int64)
    for start in range(0, len(sizes), _COUNTED_BLOCK):
        counts += np.bincount(sizes[start : start + _COUNTED_BLOCK], minlength=largest + 1)
    different = np.flatnonzero(counts)
    return different, counts[different]
