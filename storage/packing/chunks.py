"""Packings that cut tokens into chunks of T + 1, each of which shares one token with the next.

concat            sample i is the shard's tokens [iT, iT + T + 1); the tokens left at the shard's end are dropped
document          chunk k of a document is its tokens [kT, kT + T + 1); the remainder, less than a chunk, is dropped
document_padded   the same, and a remainder of at least 2 tokens is one more, shorter sample

The remainder of a document of L tokens, end-of-text included, is its tokens [kT, L) with k = (L - 1) // T. Neighbours
share one token, so a remainder of one token is in the chunk before it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tokenloom.storage.formats.arrays import AnyArray, Int64s, UInt64s
from tokenloom.storage.packing.base import Packing, ShardPlan

_BLOCK = 2**20  # so many documents at a time bound the memory


def length_blocks(offsets: UInt64s) -> Iterator[Int64s]:
    """Yield the tokens of each document, a block of documents at a time; raises ValueError if offsets decrease.

    Args:
        offsets: (num_documents + 1,) of a shard.
    """
    for start in range(0, len(offsets) - 1, _BLOCK):
        block = offsets[start : start + _BLOCK + 1].astype(np.int64)
        lengths = block[1:] - block[:-1]
        if lengths.min() < 0:
            raise ValueError("the document offsets must not decrease")
        yield lengths


def cut_lengths(lengths: Int64s, seq_len: int) -> tuple[Int64s, Int64s]:
    """Return the full chunks of each document before its last piece, (n,), and the tokens of that piece, (n,).

    The last piece has up to T + 1 tokens, so it may be a full chunk too, and 0 in a document without tokens.

    Example: lengths [5, 18, 9], T = 8 -> [0, 2, 0], [5, 2, 9]
    """
    num_before = np.maximum(lengths - 2, 0) // seq_len
    return num_before, lengths - num_before * seq_len


class Concat(Packing):
    """Consecutive tokens, across documents."""

    name = "concat"
    follows_documents = False

    def count(self, seq_len: int, offsets: UInt64s) -> int:
        """See Packing."""
        return max(int(offsets[-1]) - 1, 0) // seq_len

    def plan(self, seq_len: int, offsets: UInt64s) -> ShardPlan:
        """See Packing; it takes no memory."""
        return _TokenPlan(seq_len, self.count(seq_len, offsets))


class Document(Packing):
    """The full chunks of each document."""

    name = "document"
    if_empty = "use a smaller seq_len, or packing='document_padded'"

    def plan(self, seq_len: int, offsets: UInt64s) -> ShardPlan:
        """See Packing; it takes 4 bytes a document."""
        counts = [np.zeros(0, dtype=np.int64)]
        for lengths in length_blocks(offsets):
            num_before, last = cut_lengths(lengths, seq_len)
            counts.append(num_before + self._is_sample(last, seq_len))
        return _ChunkPlan(seq_len, offsets, np.concatenate(counts))

    def _is_sample(self, last: Int64s, seq_len: int) -> NDArray[np.bool_]:
        """Return whether the last piece of a document is a sample, (n,), by its tokens."""
        return np.equal(last, seq_len + 1)


class DocumentPadded(Document):
    """The full chunks of each document, and its remainder, padded."""

    name = "document_padded"
    has_padding = True
    if_empty = Packing.if_empty

    def _is_sample(self, last: Int64s, seq_len: int) -> NDArray[np.bool_]:
        return np.greater(last, 1)


class _TokenPlan:
    """Samples one after the other, whatever documents they hold."""

    def __init__(self, seq_len: int, num_samples: int) -> None:
        self._seq_len, self._len = seq_len, num_samples

    def __len__(self) -> int:
        return self._len

    def pieces(self, samples: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        starts = np.asarray(samples, dtype=np.int64) * self._seq_len
        return np.arange(len(starts) + 1), starts, np.full(len(starts), self._seq_len + 1, dtype=np.int64)


class _ChunkPlan:
    """The first `counts[i]` chunks of each document i, the last of which may be shorter; (num_documents,) counts."""

    def __init__(self, seq_len: int, offsets: UInt64s, counts: Int64s) -> None:
        self._seq_len, self._offsets = seq_len, offsets
        ends = np.cumsum(counts, dtype=np.int64)
        self._len = int(ends[-1]) if len(ends) else 0
        self._ends: AnyArray = ends.astype(np.uint32) if self._len < 2**32 else ends

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
