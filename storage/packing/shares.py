"""What a packing does to a shard: the shares of padding, of dropped tokens and of cut documents."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np

from tokenloom.storage.formats.arrays import UInt64s
from tokenloom.storage.packing.packings import plan_shard


@dataclass(frozen=True)
class PackingShares:
    """What a packing keeps, pads, drops and cuts, of one shard or summed over several.

    A document is cut if no sample holds all of its tokens. A token that two samples share counts once.
    """

    num_samples: int
    padding_tokens: int
    slot_tokens: int  # num_samples * (T + 1)
    dropped_tokens: int
    cut_documents: int
    num_documents: int

    @property
    def padding_share(self) -> float:
        """Padding in all slots, in [0, 1]."""
        return self.padding_tokens / max(1, self.slot_tokens)

    @property
    def cut_share(self) -> float:
        """Cut documents in all documents, in [0, 1]."""
        return self.cut_documents / max(1, self.num_documents)

    def __add__(self, other: PackingShares) -> PackingShares:
        return PackingShares(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


def shares_of(packing: str, seq_len: int, num_tokens: int, offsets: UInt64s) -> PackingShares:
    """Return what a packing does to a shard, from its pieces, 24 bytes each; see num_samples for arguments and errors.

    A document is whole if one piece holds all of it: of those that begin with it or before, the one that reaches
    furthest.
    """
    plan = plan_shard(packing, seq_len, num_tokens, offsets)
    _, starts, lengths = plan.pieces(np.arange(len(plan)))
    by_start = np.argsort(starts, kind="stable")
    starts, ends = starts[by_start], (starts + lengths)[by_start]
    reach = np.concatenate([np.zeros(1, np.int64), np.maximum.accumulate(ends)])  # by the pieces before
    kept_tokens = int(np.maximum(ends - np.maximum(starts, reach[:-1]), 0).sum())
    firsts, lasts = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
    is_cut = (lasts > firsts) & (reach[np.searchsorted(starts, firsts, side="right")] < lasts)
    slot_tokens = len(plan) * (seq_len + 1)
    return PackingShares(
        num_samples=len(plan),
        padding_tokens=slot_tokens - int(lengths.sum()),
        slot_tokens=slot_tokens,
        dropped_tokens=num_tokens - kept_tokens,
        cut_documents=int(is_cut.sum()),
        num_documents=len(firsts),
    )
