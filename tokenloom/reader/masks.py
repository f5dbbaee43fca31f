"""Attention within documents: a dense mask and a FlexAttention mask_mod; and cutting a batch for consecutive passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class DocumentMask:
    """Who attends to whom: a token to those before it and itself, within its document; padding to padding alone.

    Args:
        document_ids: (B, T) int32 of a batch.
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
        """For torch.nn.attention.flex_attention.create_block_mask(mask_mod, B, None, T, T, device)."""
        ids = self.document_ids

        def within_document(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (query >= key) & (ids[batch, query] == ids[batch, key])

        return within_document


def document_mask(document_ids: Tensor) -> DocumentMask:
    """Return the mask of a batch whose dataset has the field "document_ids"; see DocumentMask."""
    return DocumentMask(document_ids)


def segments(batch: dict[str, Any], num_segments: int) -> Iterator[dict[str, Any]]:
    """Yield a batch in consecutive segments of T / num_segments tokens, for truncated backpropagation or updates.

    Args:
        batch: tensors (B, T); cu_seqlens and max_seqlen, which hold for whole rows, are left out.
        num_segments: divides T.

    Raises ValueError if T is no multiple of num_segments.
    """
    seq_len = batch["input_ids"].shape[1]
    if num_segments < 1 or seq_len % num_segments:
        raise ValueError(f"{seq_len} tokens can't be cut into {num_segments} equal segments")
    width = seq_len // num_segments
    rows = {name: values for name, values in batch.items() if name not in ("cu_seqlens", "max_seqlen")}
    for start in range(0, seq_len, width):
        yield {name: values[:, start : start + width] for name, values in rows.items()}
