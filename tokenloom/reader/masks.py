"""Attention within documents, as a dense mask or a FlexAttention mask_mod; and segments of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tokenloom.reader.shards.batch_format import WHOLE_BATCH, Batch


@dataclass(frozen=True)
class DocumentMask:
    """Which tokens attend to which: a token to itself and to those before it in its document; padding only to padding.

    Args:
        document_ids: those of a batch, (B, T) int32.
    """

    document_ids: Tensor

    def dense(self) -> Tensor:
        """Return (B, 1, T, T) bool, True where row attends to column, on the device of document_ids."""
        ids = self.document_ids
        same = ids[:, :, None] == ids[:, None, :]
        causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device).tril()
        return (same & causal)[:, None]

    @property
    def mask_mod(self) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """The argument of torch.nn.attention.flex_attention.create_block_mask(mask_mod, B, None, T, T, device)."""
        ids = self.document_ids

        def within_document(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (query >= key) & (ids[batch, query] == ids[batch, key])

        return within_document


def document_mask(document_ids: Tensor) -> DocumentMask:
    """Return the mask of a batch whose dataset has the field "document_ids"; see DocumentMask."""
    return DocumentMask(document_ids)


def segments(batch: Batch, num_segments: int) -> Iterator[Batch]:
    """Yield consecutive segments of a batch, T / num_segments tokens each, for truncated backpropagation.

    Args:
        batch: tensors (B, T); segments leave out num_targets, cu_seqlens and max_seqlen, which hold for whole rows
            only, and have `member` as it is.
        num_segments: a divisor of T.

    Raises ValueError if num_segments does not divide T.
    """
    seq_len = batch["input_ids"].shape[1]
    if num_segments < 1 or seq_len % num_segments:
        raise ValueError(f"{seq_len} tokens can't be cut into {num_segments} equal segments")
    width = seq_len // num_segments
    rows = {name: values for name, values in batch.items() if name not in WHOLE_BATCH}
    for start in range(0, seq_len, width):
        yield {name: values if name == "member" else values[:, start : start + width] for name, values in rows.items()}
