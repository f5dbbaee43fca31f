"""Packings: which tokens of a shard each sample has, from T and the document offsets alone.

A sample is a row of at most T + 1 tokens of one shard, T = `seq_len`: its inputs are row[:-1], its labels row[1:].
Samples are numbered by their first token in the shard, and the pieces of a sample are in the order of the shard.
The state of a reader counts samples, so the samples of a packing never change under the same name.

Here are those that cut tokens into chunks of T + 1, each of which shares one token with the next:

concat            sample i is the shard's tokens [iT, iT + T + 1); the tokens left at the shard's end are dropped
document          chunk k of a document is its tokens [kT, kT + T + 1); the remainder, less than a chunk, is dropped
document_padded   the same, and a remainder of at least 2 tokens is one more, shorter sample

The remainder of a document of L tokens, end-of-text included, is its tokens [kT, L) with k = (L - 1) // T. Neighbours
share one token, so a remainder of one token is in the chunk before it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from tokenloom.storage.formats.arrays import AnyArray, Int64s, UInt64s


class ShardPlan(Protocol):
    """Where the tokens of each sample of one shard are; several threads may use it."""

    def __len__(self) -> int:
        """Count the samples."""

    def pieces(self, samples: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """List the pieces of samples, each a range of the shard's tokens.

        Args:
            samples: (n,) numbers of samples, each in [0, len).

        Returns:
            row_offsets (n + 1,), starts (p,), lengths (p,): row r has the pieces row_offsets[r] to row_offsets[r + 1].
        """


class Packing(ABC):
    """How the tokens of a shard become samples; packings.py lists all of them."""

    #: its name in states and on the command line
    name: str
    #: Whether each piece of a sample is a part of one document. Otherwise, a sample is one piece across documents,
    #: whose start depends only on the sample's number.
    follows_documents: ClassVar[bool] = True
    #: whether a sample may have fewer than T + 1 tokens
    has_padding: ClassVar[bool] = False
    #: whether no label is the first token of another document, unless a reader wants these labels
    masks_documents: ClassVar[bool] = False
    #: each piece takes a multiple of this many inputs of its sample; padding follows its tokens
    pad_documents: int = 1
    #: the next step for a split without samples
    if_empty: str = "use a smaller seq_len"

    @abstractmethod
    def plan(self, seq_len: int, offsets: UInt64s) -> ShardPlan:
        """Plan the samples of a shard.

        Args:
            seq_len: T, in [1, 2**31).
            offsets: (num_documents + 1,) of the shard, ascending from 0; or [0, num_tokens] for a packing that does not
                follow documents.
        """

    def count(self, seq_len: int, offsets: UInt64s) -> int:
        """Count the samples of a shard; `plan` documents the arguments."""
        return len(self.plan(seq_len, offsets))


def cut_lengths(lengths: Int64s, seq_len: int) -> tuple[Int64s, Int64s]:
    """Count the full chunks of each document before its last piece, (n,), and the tokens of that piece, (n,).

    The last piece has up to T + 1 tokens, so it may be a full chunk too, and 0 in a document without tokens.

    Example: lengths [5, 18, 9], T = 8 -> [0, 2, 0], [5, 2, 9]
    """
    num_before = np.maximum(lengths - 2, 0) // seq_len
    return num_before, lengths - num_before * seq_len


class Concat(Packing):
    """Consecutive tokens, across documents."""

    name = "concat"
    follows_documents = False

    def plan(self, seq_len: int, offsets: UInt64s) -> ShardPlan:
        """See Packing; it takes no memory."""
        return _TokenPlan(seq_len, int(offsets[-1]))


class Document(Packing):
    """The full chunks of each document."""

    name = "document"
    if_empty = "use a smaller seq_len, or packing='document_padded'"

    def plan(self, seq_len: int, offsets: UInt64s) -> ShardPlan:
        """See Packing; the plan takes 4 bytes a document."""
        bounds: Int64s = offsets.astype(np.int64)
        num_before, last = cut_lengths(bounds[1:] - bounds[:-1], seq_len)
        return _ChunkPlan(seq_len, offsets, num_before + (last >= (2 if self.has_padding else seq_len + 1)))


class DocumentPadded(Document):
    """The full chunks of each document, and its remainder, padded."""

    name = "document_padded"
    has_padding = True
    if_empty = Packing.if_empty


@dataclass(frozen=True)
class _TokenPlan:
    """Samples one after the other, whatever documents they hold."""

    seq_len: int
    num_tokens: int

    def __len__(self) -> int:
        return max(self.num_tokens - 1, 0) // self.seq_len

    def pieces(self, samples: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        starts = np.asarray(samples, dtype=np.int64) * self.seq_len
        return np.arange(len(starts) + 1), starts, np.full(len(starts), self.seq_len + 1, dtype=np.int64)


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
