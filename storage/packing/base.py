"""What a packing is: it says which tokens of a shard each sample has, from T and the document offsets alone.

A sample is a row of at most T + 1 tokens of one shard, T = `seq_len`: its inputs are row[:-1], its labels row[1:].
Samples are numbered by their first token in the shard, and the pieces of a sample are in the order of the shard.
The state of a reader counts samples, so the samples of a packing never change
under the same name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Protocol

from tokenloom.storage.formats.arrays import Int64s, UInt64s


class ShardPlan(Protocol):
    """Where the tokens of each sample of one shard are; several threads may use it."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def pieces(self, samples: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Return the pieces of samples, each a range of the shard's tokens.

        Args:
            samples: (n,) numbers of samples, each in [0, len).

        Returns:
            row_offsets (n + 1,), starts (p,), lengths (p,): row r has the pieces row_offsets[r] to row_offsets[r + 1].
        """


class Packing(ABC):
    """How the tokens of a shard become samples; packings.py lists all of them."""

    #: what states and the command line call it
    name: ClassVar[str]
    #: Whether each piece of a sample is a part of one document. Otherwise, a sample is one piece across documents,
    #: whose start depends only on the sample's number.
    follows_documents: ClassVar[bool] = True
    #: whether a sample may have fewer than T + 1 tokens
    has_padding: ClassVar[bool] = False
    #: whether no label is the first token of another document, unless a reader wants these labels
    masks_documents: ClassVar[bool] = False
    #: each piece takes a multiple of this many inputs of its sample; padding follows its tokens
    pad_documents: int = 1
    #: what a user can do about a split without samples
    if_empty: ClassVar[str] = "use a smaller seq_len"

    @abstractmethod
    def plan(self, seq_len: int, offsets: UInt64s) -> ShardPlan:
        """Return where the samples of a shard are.

        Args:
            seq_len: T, in [1, 2**31).
            offsets: (num_documents + 1,) of the shard, or [0, num_tokens] for a packing that does not follow documents.

        Raises ValueError if the offsets decrease.
        """

    def count(self, seq_len: int, offsets: UInt64s) -> int:
        """Return how many samples a shard has; see plan for arguments and errors."""
        return len(self.plan(seq_len, offsets))
