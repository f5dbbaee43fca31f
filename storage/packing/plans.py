"""Packing: how the tokens of a shard become samples, as a pure function of (packing, T, document offsets).

A sample is a row of at most T + 1 tokens of one shard, T = `seq_len`: its inputs are row[:-1], its labels row[1:].

concat            sample i is the shard's tokens [iT, iT + T + 1); the tokens left at the shard's end are dropped
document          chunk k of a document is its tokens [kT, kT + T + 1); the remainder, less than a chunk, is dropped
document_padded   the same, and a remainder of at least 2 tokens is one more, shorter sample
best_fit          whole documents, and the remainders of those over T + 1 tokens, packed by best-fit-decreasing into
                  samples of T + 1 tokens (best_fit.py); each chunk as above is a sample

The remainder of a document of L tokens, end-of-text included, is its tokens [kT, L) with k = (L - 1) // T. Neighbours
share one token, so a remainder of one token is in the chunk before it. Manifests hold numbers of samples, and the
state of a reader counts samples, so the samples of a packing never change under the same name.

Samples are numbered by their first token in the shard, and the pieces of a sample are in the order of the shard.
Planning "best_fit" for 1,000,000 documents takes 0.08 to 0.7 s (T from 2,048 to 131,072); the rest is arithmetic.
"""

from __future__ import annotations

import operator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tokenloom.storage.formats.arrays import Int64s

PACKINGS: tuple[str, ...] = ("concat", "document", "document_padded", "best_fit")


class ShardPlan(Protocol):
    """Where the tokens of each sample of one shard are."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def pieces(self, samples: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Return the pieces of samples, each a range of the shard's tokens.

        Args:
            samples: (n,) numbers of samples, each in [0, len).

        Returns:
            row_offsets (n + 1,), starts (p,), lengths (p,): row r has the pieces row_offsets[r] to row_offsets[r + 1].
        """


def sample_key(packing: str, seq_len: int) -> str:
    """Return the name of a number of samples in a manifest: "best_fit/2048"."""
    return f"{packing}/{seq_len}"


def num_concat_samples(num_tokens: int | Int64s, seq_len: int) -> Int64s:
    """Return how many samples "concat" makes of the tokens of a shard, or of each of several shards."""
    return np.maximum(np.asarray(num_tokens, np.int64) - 1, 0) // seq_len


def num_samples(packing: str, seq_len: int, num_tokens: int, offsets: NDArray[np.uint64] | None = None) -> int:
    """Return how many samples a shard has.

    Args:
        packing: one of PACKINGS.
        seq_len: T, in [1, 2**31).
        num_tokens: the number of the shard's tokens.
        offsets: (num_documents + 1,) of the shard; "concat" needs none.

    Raises:
        ValueError: an argument out of range, or offsets that are missing or contradict `num_tokens`.
    """
    check_packing(packing, seq_len)
    if packing == "concat":
        return int(num_concat_samples(num_tokens, seq_len))
    from tokenloom.storage.packing.document_plans import num_document_samples  # most readers need only "concat"

    return num_document_samples(packing, seq_len, require_offsets(offsets, num_tokens))


def plan_shard(packing: str, seq_len: int, num_tokens: int, offsets: NDArray[np.uint64] | None = None) -> ShardPlan:
    """Return where the samples of a shard are; see num_samples for arguments and errors.

    Memory: "concat" none, "document" and "document_padded" 4 bytes a document, "best_fit" 4 a sample and 8 a piece.
    """
    check_packing(packing, seq_len)
    if packing == "concat":
        return _ConcatPlan(seq_len, num_tokens)
    from tokenloom.storage.packing.document_plans import plan_documents  # most readers need only "concat"

    return plan_documents(packing, seq_len, require_offsets(offsets, num_tokens))


def check_packing(packing: str, seq_len: int) -> None:
    """Raise ValueError if `packing` is not in PACKINGS, or `seq_len` is not in [1, 2**31)."""
    if packing not in PACKINGS:
        raise ValueError(f"packing: one of {', '.join(PACKINGS)}, not {packing!r}")
    if not 1 <= operator.index(seq_len) < 2**31:
        raise ValueError(f"seq_len must be in [1, 2**31), not {seq_len}")


def require_offsets(offsets: NDArray[np.uint64] | None, num_tokens: int) -> NDArray[np.uint64]:
    """Return the document offsets of a shard; raises ValueError if they are missing or contradict its tokens."""
    if offsets is None:
        raise ValueError("every packing but concat needs the document offsets")
    if not len(offsets) or (int(offsets[0]), int(offsets[-1])) != (0, num_tokens):
        raise ValueError(f"the document offsets do not run from 0 to the shard's {num_tokens} tokens")
    return offsets


class _ConcatPlan:
    def __init__(self, seq_len: int, num_tokens: int) -> None:
        self._seq_len = seq_len
        self._len = int(num_concat_samples(num_tokens, seq_len))

    def __len__(self) -> int:
        return self._len

    def pieces(self, samples: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        starts = np.asarray(samples, dtype=np.int64) * self._seq_len
        return np.arange(len(starts) + 1), starts, np.full(len(starts), self._seq_len + 1, dtype=np.int64)
