"""The part of a batch that a context parallel rank computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokenloom.reader.arguments import checked_choice, checked_int
from tokenloom.reader.shards.batch_format import Batch

if TYPE_CHECKING:
    from torch import Tensor

    from tokenloom.storage.formats.arrays import AnyArray

_OF_ROWS = ("cu_seqlens", "max_seqlen", "member")  # attention over all parts needs them as they are
_LAYOUTS = ("headtail", "contiguous")


def context_shard(batch: Batch, rank: int, size: int, layout: str = "headtail") -> Batch:
    """Return the T / size tokens of each row that one context parallel rank computes, as copies.

    The labels must be shifted already (`labels="shifted"`): a model that shifts those of a part would lose one at the
    end of each chunk.

    Example: of T = 8 tokens, "headtail" gives 2 ranks the tokens 0 1 6 7 and 2 3 4 5, so that both have as much causal
    attention to compute; "contiguous" gives them 0 1 2 3 and 4 5 6 7.

    Args:
        batch: of a loader, (B, T) tensors or numpy arrays. cu_seqlens, max_seqlen and member stay those of whole rows;
            num_targets is left out, because data ranks count their targets once. A batch without position_ids gets
            those of its rows, from 0 to T - 1, because a part does not show where its tokens are.
        rank: the context parallel rank, in [0, size).
        size: the number of context parallel ranks.
        layout: "headtail": of 2 * size chunks of each row, chunks `rank` and `2 * size - 1 - rank`; "contiguous":
            of `size` chunks, chunk `rank`.

    Raises ValueError if T is not divisible by the number of chunks, or an argument is out of range.
    """
    size = checked_int("size", size, 1)
    rank = checked_int("rank", rank, 0, size)
    num_rows, seq_len = batch["input_ids"].shape
    if checked_choice("layout", layout, _LAYOUTS) == "headtail":
        num_chunks, chunks = 2 * size, [rank, 2 * size - 1 - rank]
    else:
        num_chunks, chunks = size, [rank]
    if seq_len % num_chunks:
        raise ValueError(
            f"rows of {seq_len:,} tokens can't be cut into {num_chunks} equal chunks for {size} context parallel ranks"
            f" with the layout {layout!r}: use a seq_len that {num_chunks} divides"
        )
    whole = {"position_ids": _positions(batch["input_ids"])} | batch
    return {
        name: value if name in _OF_ROWS else value.reshape(num_rows, num_chunks, -1)[:, chunks].reshape(num_rows, -1)
        for name, value in whole.items()
        if name != "num_targets"
    }


def _positions(ids: Tensor | AnyArray) -> Tensor | AnyArray:
    """Return the position of each token in its row, (B, T) int32, of the same kind and on the same device."""
    if isinstance(ids, np.ndarray):
        return np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape)
    import torch  # numpy needs none

    return torch.arange(ids.shape[1], dtype=torch.int32, device=ids.device).expand(ids.shape)
