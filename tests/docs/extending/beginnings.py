"""The packing "beginnings": the first T + 1 tokens of each document that has as many."""

from __future__ import annotations

import numpy as np

from tokenloom.storage.formats.arrays import Int64s, UInt64s
from tokenloom.storage.packing.base import Packing, ShardPlan


class Beginnings(Packing):
    """The first tokens of each long document."""

    name = "beginnings"

    def plan(self, seq_len: int, offsets: UInt64s) -> ShardPlan:
        """See Packing; it takes 8 bytes a sample."""
        starts = offsets[:-1].astype(np.int64)
        return _BeginningsPlan(seq_len, starts[offsets[1:].astype(np.int64) - starts > seq_len])


class _BeginningsPlan:
    def __init__(self, seq_len: int, starts: Int64s) -> None:
        self._seq_len, self._starts = seq_len, starts

    def __len__(self) -> int:
        return len(self._starts)

    def pieces(self, samples: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        starts = self._starts[samples]
        return np.arange(len(starts) + 1), starts, np.full(len(starts), self._seq_len + 1)
