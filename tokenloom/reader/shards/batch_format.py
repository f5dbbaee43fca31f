"""What a batch holds, and in which form."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from tokenloom.storage.formats.arrays import AnyArray, TokenDtype

IGNORED = -100  # the label that loss functions ignore
#: fields that follow from where documents begin
DOCUMENT_FIELDS = frozenset(["cu_seqlens", "document_ids", "position_ids"])
FIELDS = ("classes", "cu_seqlens", "document_ids", "position_ids", "member")
LABELS = ("shifted", "same")
WHOLE_BATCH = ("cu_seqlens", "max_seqlen", "num_targets")  # what a batch holds for all of its rows together
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
    learn: str | tuple[str, ...] | None = None  # which classes are targets, see learned_classes; None without masks
    cu_seqlens_length: int | None = None  # of every batch; None for as many as there are runs, and one
    pad_documents: int = 1  # each document takes a multiple of this many inputs of its row

    @property
    def row_tokens(self) -> int:
        """The number of tokens in a row, T + 1."""
        return self.seq_len + 1

    @property
    def shift(self) -> int:
        """How many tokens a label is after its input, in a row."""
        return int(self.labels == "shifted")

    def of_labels(self, rows: AnyArray) -> AnyArray:
        """Return what belongs to the labels of (n, T + 1) rows, (n, T)."""
        return rows[:, self.shift : self.shift + self.seq_len]

    @property
    def row_fields(self) -> tuple[str, ...]:
        """The fields of shape (B, T) that follow from where documents begin."""
        return tuple(name for name in self.fields if name in ("document_ids", "position_ids"))

    @property
    def needs_classes(self) -> bool:
        """Whether a batch depends on the classes of its tokens."""
        return self.learn is not None or "classes" in self.fields

    @property
    def needs_marks(self) -> bool:
        """Whether a batch depends on where documents begin in its rows."""
        return self.mask_documents or self.short_rows or not DOCUMENT_FIELDS.isdisjoint(self.fields)
