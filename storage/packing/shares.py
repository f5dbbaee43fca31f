"""What a packing does to a shard: the shares of padding, of dropped tokens and of cut documents."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

from tokenloom.storage.formats.arrays import Int64s
from tokenloom.storage.packing.chunks import Chunks, length_blocks
from tokenloom.storage.packing.document_plans import fill_samples
from tokenloom.storage.packing.plans import check_packing, num_concat_samples, require_offsets


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


def shares_of(packing: str, seq_len: int, num_tokens: int, offsets: NDArray[np.uint64]) -> PackingShares:
    """Return what a packing does to a shard; see num_samples for arguments and errors."""
    check_packing(packing, seq_len)
    known = require_offsets(offsets, num_tokens)
    if packing == "concat":
        return _concat_shares(seq_len, num_tokens, known)
    if packing == "best_fit":
        return _best_fit_shares(seq_len, known)
    total = PackingShares(0, 0, 0, 0, 0, 0)
    for lengths in length_blocks(known):
        total += _document_shares(seq_len, lengths, padded=packing == "document_padded")
    return total


def _concat_shares(seq_len: int, num_tokens: int, offsets: NDArray[np.uint64]) -> PackingShares:
    count = int(num_concat_samples(num_tokens, seq_len))
    kept = count * seq_len + 1 if count else 0
    starts, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
    # Of the samples that hold a document's first token, the last one reaches furthest.
    reach = np.minimum((starts // seq_len + 1) * seq_len + 1, kept)
    cut = int(((ends > reach) & (ends > starts)).sum())
    return PackingShares(count, 0, count * (seq_len + 1), num_tokens - kept, cut, len(starts))


def _document_shares(seq_len: int, lengths: Int64s, padded: bool) -> PackingShares:
    chunks = Chunks.of(lengths, seq_len)
    samples = chunks.num_samples(padded)  # (num_documents,)
    count = int(samples.sum())
    remainders = chunks.remainder[samples > chunks.num_full]
    padding = int((seq_len + 1 - remainders).sum())
    kept = chunks.num_full * seq_len + (chunks.num_full > 0)
    if padded:
        kept = np.where(chunks.remainder > 1, lengths, kept)
    is_cut = (lengths > 0) & ((samples != 1) | (kept < lengths))
    dropped = int((lengths - kept).sum())
    return PackingShares(count, padding, count * (seq_len + 1), dropped, int(is_cut.sum()), len(lengths))


def _best_fit_shares(seq_len: int, offsets: NDArray[np.uint64]) -> PackingShares:
    filling, num_full, filled = fill_samples(seq_len, offsets)
    count = filling.num_bins + num_full
    padding = filling.num_bins * (seq_len + 1) - filled
    cut = sum(int((lengths > seq_len + 1).sum()) for lengths in length_blocks(offsets))
    return PackingShares(count, padding, count * (seq_len + 1), 0, cut, len(offsets) - 1)
