"""A batch: its fields, form and device, the attention mask of its documents, and the parts that trainers cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tokenloom.errors import checked_choice, checked_int
from tokenloom.storage.formats.arrays import AnyArray, TokenDtype

if TYPE_CHECKING:
    import torch
    from torch import Tensor


IGNORED = -100  # the label that loss functions ignore
#: fields that follow from where documents begin
DOCUMENT_FIELDS = frozenset(["cu_seqlens", "document_ids", "position_ids"])
FIELDS = ("classes", "cu_seqlens", "document_ids", "position_ids", "source_ids", "member")
LABELS = ("shifted", "same")
WHOLE_BATCH = ("cu_seqlens", "max_seqlen", "num_targets")  # what a batch holds for all of its rows together
_OF_ROWS = ("cu_seqlens", "max_seqlen", "member")  # attention over all parts needs them as they are
_LAYOUTS = ("headtail", "contiguous")
#: a tensor, or the int max_seqlen; callers need not narrow it
BatchValue: TypeAlias = Any  # type: ignore[explicit-any]
Batch: TypeAlias = dict[str, BatchValue]


def torch_device(device: str | int | torch.device | None) -> torch.device | None:
    """Return the device of torch that a name means, or None for "numpy": arrays, which need no torch.

    Raises RuntimeError, of torch, if it has no such device, ModuleNotFoundError if torch is not installed.
    """
    if device == "numpy":
        return None
    try:
        import torch
    except ModuleNotFoundError as error:
        message = 'tensors need torch: pip install torch, or pass device="numpy" for batches of numpy arrays'
        raise ModuleNotFoundError(message, name="torch") from error
    return torch.device("cpu" if device is None else device)


@dataclass
class BatchFormat:
    """The contents of a batch and their form; TokenDataset documents the arguments. Nothing changes it."""

    seq_len: int
    labels: str
    fields: tuple[str, ...]
    mask_documents: bool  # whether the label of a token that begins another document is ignored
    short_rows: bool  # whether a row may be shorter than T + 1
    eot_id: int
    dtype: TokenDtype
    learn: str | tuple[str, ...] | None = None  # which classes are targets, see learned_classes; None without masks
    cu_seqlens_length: int | None = None  # of every batch; None for as many as there are runs, and one
    pad_documents: int = 1  # each document takes a multiple of this many inputs of its row

    def __post_init__(self) -> None:
        #: the number of tokens in a row, T + 1
        self.row_tokens = self.seq_len + 1
        #: how many tokens a label is after its input, in a row
        self.shift = int(self.labels == "shifted")
        #: the fields of shape (B, T) that follow from where documents begin
        self.row_fields = tuple(name for name in self.fields if name in ("document_ids", "position_ids"))
        #: whether a batch depends on the classes of its tokens
        self.needs_classes = self.learn is not None or "classes" in self.fields
        #: whether a batch depends on where documents begin in its rows
        self.needs_marks = self.mask_documents or self.short_rows or not DOCUMENT_FIELDS.isdisjoint(self.fields)

    def of_labels(self, rows: AnyArray) -> AnyArray:
        """Cut (n, T + 1) rows to the part of their labels, (n, T)."""
        return rows[:, self.shift : self.shift + self.seq_len]


@dataclass(frozen=True)
class DocumentMask:
    """Which tokens attend to which: a token to itself and to those before it in its document; padding only to padding.

    Args:
        document_ids: those of a batch, (B, T) int32.
    """

    document_ids: Tensor

    def dense(self) -> Tensor:
        """Return (B, 1, T, T) bool, True where row attends to column, on the device of document_ids."""
        import torch  # batches may be numpy arrays, which need none

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
