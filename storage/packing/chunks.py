"""Documents cut into chunks of T + 1 tokens, each sharing one token with the next, and a remainder; see plans.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenloom.storage.formats.arrays import AnyArray, Int64s

_DECREASING = "the document offsets must not decrease"
_BLOCK = 2**20  # documents at a time, which bounds the memory


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
    if not lengths.all():
        lengths = lengths[lengths > 0]
    num_full: AnyArray = (lengths - 1) // seq_len
    counts: AnyArray = np.maximum(num_full + (lengths - num_full * seq_len > 1), 1)
    last = np.cumsum(counts, dtype=np.int64) - 1  # of each document; its other pieces share a token with the next one
    num_pieces = int(counts.sum(dtype=np.int64))
    steps, sizes = np.full(num_pieces, seq_len, dtype), np.full(num_pieces, seq_len + 1, dtype)
    steps[last] = sizes[last] = lengths - (counts - 1) * seq_len
    starts: AnyArray = np.cumsum(steps, dtype=dtype)
    starts -= steps
    return starts, sizes
