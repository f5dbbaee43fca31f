"""What a batch holds, and in which form."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

from tokenloom.storage.formats.arrays import TokenDtype

IGNORED = -100  # the label that loss functions ignore
DOCUMENT_FIELDS = ("cu_seqlens", "document_ids", "position_ids")  # they follow from where documents begin
FIELDS = (*DOCUMENT_FIELDS, "member")
LABELS = ("shifted", "same")
#: a tensor, or the int max_seqlen; callers need not narrow it
BatchValue: TypeAlias = Any  # type: ignore[explicit-any]
Batch: TypeAlias = dict[str, BatchValue]


class BatchFormat(NamedTuple):
    """What a batch holds, and in which form; TokenDataset documents the arguments."""

    seq_len: int
    labels: str
    fields: tuple[str, ...]
    mask_documents: bool  # whether the label of a token that begins another document is ignored
    short_rows: bool  # whether a row may be shorter than T + 1
    eot_id: int
    dtype: TokenDtype

    @property
    def row_tokens(self) -> int:
        """The number of tokens in a row, T + 1."""
        return self.seq_len + 1

    @property
    def row_fields(self) -> tuple[str, ...]:
        """The fields of shape (B, T)."""
        return tuple(name for name in self.fields if name not in ("cu_seqlens", "member"))

    @property
    def needs_marks(self) -> bool:
        """Whether a batch depends on where documents begin in its rows."""
        return has_document_fields(self.fields) or self.mask_documents or self.short_rows


def has_document_fields(fields: Iterable[str]) -> bool:
    """Return whether one of the fields follows from where documents begin."""
    return not set(DOCUMENT_FIELDS).isdisjoint(fields)
