"""Take the ids of rows from columns of Arrow record batches, and which are learned or padding, by those beside them."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokenloom.errors import InputError
from tokenloom.storage.formats.arrays import AnyArray, Int64s
from tokenloom.tasks.sources.base import Rows
from tokenloom.tasks.sources.rows.column_names import is_list
from tokenloom.tasks.sources.rows.columns import Columns
from tokenloom.tasks.sources.rows.shown_names import shown_names
from tokenloom.tasks.sources.tokens.base import Piece

IDS, LABELS, ATTENTION = "input_ids", "labels", "attention_mask"
MASKS = ("assistant_masks", "completion_mask", "loss_mask")  # 1 for what is learned
BESIDE = (LABELS, *MASKS, ATTENTION)  # the columns that say something of the ids
_OF_THE_LOSS = re.compile("mask|weight|loss", re.I)  # names of lists that say which ids are learned, it is unclear how
_HARMLESS = "special_tokens_mask"  # of tokenizers: which ids are special
IGNORED = -100  # the label of a token that is not a target


class IdColumns(Columns):
    """Takes lists of ids: the texts of its rows are those lists, and their masks structs of the columns beside them.

    Args:
        beside: those of BESIDE that the first file of a source has; None before planning.
    """

    def __init__(self, beside: Collection[str] | None) -> None:
        super().__init__({"text": IDS})
        self._beside = beside

    def documents(self, schema: pa.Schema, url: str) -> list[str]:
        """See Columns.documents; raises InputError also if not all files have the same columns of BESIDE."""
        names = [IDS, *(name for name in BESIDE if name in schema.names)]
        if self._beside is not None and (differing := set(self._beside).symmetric_difference(names[1:])):
            name = min(differing)
            found, first = ("it has", "has none") if name in names else ("it has no", "has them")
            raise InputError(
                f"{url}: {found} {name}, and the first file of its source {first}; read them as two sources"
            )
        for field in schema:
            if _OF_THE_LOSS.search(field.name) and is_list(field.type) and field.name not in (*BESIDE, _HARMLESS):
                raise InputError(
                    f"{url}: column {field.name!r} seems to say which ids are learned, and is not one of "
                    f"{', '.join((LABELS, *MASKS))}: write it as {MASKS[-1]}, with 1 for what is learned and 0 for the "
                    "rest, or write the rows without it"
                )
        for name in names:
            if schema.names.count(name) != 1:
                raise InputError(
                    f"{url}: not one column {name!r}; its columns are: {shown_names(schema.names)}. Rename columns, so "
                    f"that {IDS!r} has the ids"
                )
            kind = schema.field(name).type
            is_flag = name in BESIDE[1:] and is_list(kind) and pa.types.is_boolean(kind.value_type)
            if not is_flag and not (is_list(kind) and pa.types.is_integer(kind.value_type)):
                raise InputError(f"{url}: column {name!r} is {kind}, not lists of integers; write it as such lists")
        return names

    def _rows(self, batch: pa.RecordBatch, names: list[str], first_row: int, url: str) -> Rows:
        ids, *beside = self.documents(batch.schema, url)
        numbers = np.arange(first_row, first_row + len(batch), dtype=np.uint64)
        columns = [batch.column(name) for name in beside]
        return Rows(batch.column(ids), numbers, masks=pa.StructArray.from_arrays(columns, beside) if beside else None)


def piece_of(rows: Rows, url: str, has_mask: bool) -> Piece:
    """Return the documents of rows of IdColumns, without padding; a row without a list has no ids.

    Raises InputError if labels are not the ids of their row, or -100, or masks neither 0 nor 1.
    """
    if not len(rows.rows):  # of a row group that can't be decoded
        return Piece.without_documents(rows.bad, has_mask=has_mask)
    ids, lengths = _flat(rows.texts)
    columns = {} if rows.masks is None else {field.name: rows.masks.field(field.name) for field in rows.masks.type}
    beside = {name: _beside(column, name, lengths, rows.rows, url) for name, column in columns.items()}
    if LABELS in beside:
        _check_labels(beside[LABELS], ids, lengths, rows.rows, url)
    learned = np.ones(len(ids), bool) if has_mask else None
    for name in beside.keys() - {ATTENTION}:
        learned &= beside[name] != (IGNORED if name == LABELS else 0)
    if ATTENTION in beside:
        is_text = beside[ATTENTION] != 0
        _check_padding(is_text, lengths, rows.rows, url)
        lengths = _sums(is_text, lengths)
        ids, learned = ids[is_text], None if learned is None else learned[is_text]
    return Piece(ids, lengths, rows.rows, learned, rows.bad)


def _flat(lists: pa.Array) -> tuple[AnyArray, Int64s]:
    """Return the integers of some lists, end to end, and the length of each; a null is -1, which no vocabulary has."""
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    values = lists.flatten()
    if values.null_count:
        values = values.cast(pa.int64(), safe=False).fill_null(-1)  # one above 2^63 becomes negative
    return values.to_numpy(zero_copy_only=False), lengths


def _sums(flags: NDArray[np.bool_], lengths: Int64s) -> Int64s:
    """Return how many flags are set in each of some rows, (n,), whose flags are end to end."""
    before = np.concatenate([[0], np.cumsum(flags)])
    ends = np.cumsum(lengths)
    counts: Int64s = before[ends] - before[ends - lengths]
    return counts


def _beside(
    column: pa.Array, name: str, lengths: Int64s, numbers: NDArray[np.uint64], url: str
) -> NDArray[np.integer[Any]]:
    """Return the values of a column beside the ids, end to end; raises InputError if they are not as it should have."""
    values, found = _flat(column)
    if (uneven := lengths != found).any():
        i = int(uneven.argmax())
        raise InputError(
            f"{url}, row {numbers[i]}: {lengths[i]:,} ids and {found[i]:,} {name}; repair the row, or write the rows "
            f"without {name}"
        )
    if name != LABELS and (wrong := (values != 0) & (values != 1)).any():
        at = int(wrong.argmax())
        raise InputError(
            f"{url}, row {_row_at(at, lengths, numbers)}: {name} is {values[at]}, not 0 or 1; correct it, or write the "
            f"rows without {name}"
        )
    return values


def _row_at(position: int, lengths: Int64s, numbers: NDArray[np.uint64]) -> int:
    return int(numbers[np.searchsorted(np.cumsum(lengths), position, side="right")])


def _check_labels(
    labels: NDArray[np.integer[Any]], ids: AnyArray, lengths: Int64s, numbers: NDArray[np.uint64], url: str
) -> None:
    if (wrong := (labels != IGNORED) & (labels != ids)).any():
        at = int(wrong.argmax())
        raise InputError(
            f"{url}, row {_row_at(at, lengths, numbers)}: a label is {labels[at]} where the id is {ids[at]}; labels "
            "are the ids of the same tokens, not shifted, or -100: correct them, or write the rows without labels"
        )


def _check_padding(is_text: NDArray[np.bool_], lengths: Int64s, numbers: NDArray[np.uint64], url: str) -> None:
    """Raise InputError if a row has padding within its ids: it would join what does not belong together."""
    begins = is_text.copy()
    begins[1:] &= ~is_text[:-1]
    first = (np.cumsum(lengths) - lengths)[lengths > 0]
    begins[first] = is_text[first]
    if (cut := _sums(begins, lengths) > 1).any():
        raise InputError(
            f"{url}, row {numbers[cut.argmax()]}: {ATTENTION} is 0 within the row; zeros are padding, at its ends "
            f"alone: write the parts as rows of their own, or the rows without {ATTENTION}"
        )
