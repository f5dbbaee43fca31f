"""Take the ids and labels of rows from columns of Arrow record batches."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokenloom.errors import InputError
from tokenloom.storage.formats.arrays import AnyArray, Int64s
from tokenloom.tasks.sources.base import Rows
from tokenloom.tasks.sources.rows.columns import Columns
from tokenloom.tasks.sources.rows.shown_names import shown_names
from tokenloom.tasks.sources.tokens.base import Piece

IDS, LABELS = "input_ids", "labels"
IGNORED = -100  # the label of a token that is not a target


class IdColumns(Columns):
    """Takes lists of ids: the texts of its rows are those lists, and their masks the lists of labels.

    Args:
        has_labels: whether there are labels, as the plan found in the first file; None before planning.
    """

    def __init__(self, has_labels: bool | None) -> None:
        super().__init__({"text": IDS})
        self._has_labels = has_labels

    def documents(self, schema: pa.Schema, url: str) -> list[str]:
        """See Columns.documents; raises InputError also if not all files have labels, or none."""
        names = [IDS, *[LABELS] * (LABELS in schema.names)]
        if self._has_labels is not None and self._has_labels != (LABELS in names):
            found, first = ("it has", "has none") if LABELS in names else ("it has no", "has them")
            raise InputError(
                f"{url}: {found} {LABELS}, and the first file of its source {first}; read them as two sources"
            )
        for name in names:
            if schema.names.count(name) != 1:
                raise InputError(
                    f"{url}: not one column {name!r}; its columns are: {shown_names(schema.names)}. Rename columns, so "
                    f"that {IDS!r} has the ids"
                )
            kind = schema.field(name).type
            types = pa.types
            is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
            if not is_list or not types.is_integer(kind.value_type):
                raise InputError(f"{url}: column {name!r} is {kind}, not lists of integers; write it as such lists")
        return names

    def _rows(self, batch: pa.RecordBatch, names: list[str], first_row: int, url: str) -> Rows:
        lists = [batch.column(name) for name in self.documents(batch.schema, url)]
        numbers = np.arange(first_row, first_row + len(batch), dtype=np.uint64)
        return Rows(lists[0], numbers, masks=lists[1] if len(lists) > 1 else None)


def piece_of(rows: Rows, url: str, has_mask: bool) -> Piece:
    """Return the documents of rows of IdColumns; a row without a list has no ids.

    Raises InputError if labels are not the ids of their row, or -100.
    """
    if not len(rows.rows):  # of a row group that can't be decoded
        return Piece.without_documents(rows.bad, has_mask=has_mask)
    ids, lengths = _flat(rows.texts)
    learned = None if rows.masks is None else _learned(rows.masks, ids, lengths, rows.rows, url)
    return Piece(ids, lengths, rows.rows, learned, rows.bad)


def _flat(lists: pa.Array) -> tuple[AnyArray, Int64s]:
    """Return the integers of some lists, end to end, and the length of each; a null is -1, which no vocabulary has."""
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    values = lists.flatten()
    if values.null_count:
        values = values.cast(pa.int64(), safe=False).fill_null(-1)  # one above 2^63 becomes negative
    return values.to_numpy(), lengths


def _learned(
    labels: pa.Array, ids: AnyArray, lengths: Int64s, numbers: NDArray[np.uint64], url: str
) -> NDArray[np.bool_]:
    values, label_lengths = _flat(labels)
    if (uneven := lengths != label_lengths).any():
        i = int(uneven.argmax())
        raise InputError(
            f"{url}, row {numbers[i]}: {lengths[i]:,} ids and {label_lengths[i]:,} labels; repair the row, or write "
            "the rows without labels"
        )
    learned: NDArray[np.bool_] = values != IGNORED
    if (wrong := learned & (values != ids)).any():
        at = int(wrong.argmax())
        row = numbers[np.searchsorted(np.cumsum(lengths), at, side="right")]
        raise InputError(
            f"{url}, row {row}: a label is {values[at]} where the id is {ids[at]}; labels are the ids of the same "
            "tokens, not shifted, or -100: correct them, or write the rows without labels"
        )
    return learned
