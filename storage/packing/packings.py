"""All packings by name; docs/extending.md adds one, docs/format.md defines their samples."""

from __future__ import annotations

import operator
from collections.abc import Mapping

import numpy as np

from tokenloom.storage.formats.arrays import UInt64s
from tokenloom.storage.packing.base import Packing, ShardPlan
from tokenloom.storage.packing.best_fit import BestFit
from tokenloom.storage.packing.chunks import Concat, Document, DocumentPadded

PACKINGS: Mapping[str, Packing] = {
    packing.name: packing for packing in (Concat(), Document(), DocumentPadded(), BestFit())
}


def sample_key(packing: str, seq_len: int) -> str:
    """Return the name of a number of samples in a manifest: "best_fit/2048"."""
    return f"{packing}/{seq_len}"


def num_samples(packing: str, seq_len: int, num_tokens: int, offsets: UInt64s | None = None) -> int:
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
    return PACKINGS[packing].count(seq_len, _checked_offsets(packing, num_tokens, offsets))


def plan_shard(packing: str, seq_len: int, num_tokens: int, offsets: UInt64s | None = None) -> ShardPlan:
    """Return where the samples of a shard are; see num_samples for arguments and errors."""
    check_packing(packing, seq_len)
    return PACKINGS[packing].plan(seq_len, _checked_offsets(packing, num_tokens, offsets))


def check_packing(packing: str, seq_len: int) -> None:
    """Raise ValueError if `packing` is not in PACKINGS, or `seq_len` is not in [1, 2**31)."""
    if packing not in PACKINGS:
        raise ValueError(f"packing: one of {', '.join(PACKINGS)}, not {packing!r}")
    if not 1 <= operator.index(seq_len) < 2**31:
        raise ValueError(f"seq_len must be in [1, 2**31), not {seq_len}")


def _checked_offsets(packing: str, num_tokens: int, offsets: UInt64s | None) -> UInt64s:
    """Return what Packing.plan needs; raise ValueError if offsets are missing or contradict the shard's tokens."""
    if offsets is None and PACKINGS[packing].follows_documents:
        raise ValueError(f"{packing} needs the document offsets")
    if offsets is None:
        return np.array([0, num_tokens], np.uint64)
    if not len(offsets) or (int(offsets[0]), int(offsets[-1])) != (0, num_tokens):
        raise ValueError(f"the document offsets do not run from 0 to the shard's {num_tokens} tokens")
    return offsets
