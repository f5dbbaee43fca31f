"""Take documents from columns of ids: which ids are learned or padding, and which mark their begin and end.

Every format of tokens yields such columns: lists of ids, and beside them what says which ids are learned.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokenloom.errors import InputError
from tokenloom.storage.formats.arrays import AnyArray, Int64s, UInt64s, runs_of
from tokenloom.tasks.sources.base import MASK, BadValue, Options, PlaceOf, RowBatch, Rows
from tokenloom.tasks.sources.columns import Columns
from tokenloom.tasks.sources.values import LISTS, shown_names

IDS, LABELS, ATTENTION = "input_ids", "labels", "attention_mask"
MASKS = ("assistant_masks", "completion_mask", "loss_mask")  # 1 for a learned token
BESIDE = (LABELS, *MASKS, ATTENTION)  # the columns that say something of the ids
IGNORED = -100  # the label of a token that is not a target
ID_BYTES = 4  # bytes of an id in a batch, whatever its type in the file
BATCH_TOKENS = 1_000_000  # about so many are in memory at a time
_OF_THE_LOSS = re.compile("mask|weight|loss", re.I)  # names of lists that say which ids are learned, it is unclear how
_HARMLESS = "special_tokens_mask"  # tokenizers write it: which ids are special


def id_batch(ids: AnyArray, lengths: Int64s, rows: UInt64s, learned: NDArray[np.bool_] | None) -> RowBatch:
    """Return whole documents as a batch.

    Args:
        ids: (num_tokens,) of an integer type, with those that mark the begin and end of documents.
        lengths: (n,) tokens of each document.
        rows: (n,) their numbers.
        learned: (num_tokens,) whether each token is a target, None for a file without a mask.
    """
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int64())
    columns = {IDS: ids} if learned is None else {IDS: ids, MASKS[-1]: learned.view(np.uint8)}
    lists = [pa.LargeListArray.from_arrays(offsets, pa.array(values)) for values in columns.values()]
    return RowBatch(pa.RecordBatch.from_arrays(lists, list(columns)), rows)


@dataclass(frozen=True)
class _Documents:
    """Documents end to end, without padding: (num_tokens,) ids and perhaps `learned`, (n,) lengths and rows."""

    ids: AnyArray
    lengths: Int64s
    rows: UInt64s
    learned: NDArray[np.bool_] | None


class IdColumns(Columns):
    """Takes documents from columns of ids: `texts` of its rows are ids as little-endian uint32.

    Args:
        options: `vocab_size`, `eot_id`, `bos_id`, `on_error` and `has`, see TokenFormat.
        beside: those of BESIDE that the first file of a source has; None if they are not known.
    """

    def __init__(self, options: Options, beside: Collection[str] | None = None) -> None:
        super().__init__({"text": IDS})
        self._vocab_size, self._eot_id = int(options["vocab_size"]), int(options["eot_id"])
        self._bos_id: int | None = options.get("bos_id")
        self._has_mask, self._skips = MASK in options.get("has", ()), options.get("on_error") == "skip"
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
            if (
                _OF_THE_LOSS.search(field.name)
                and isinstance(field.type, LISTS)
                and field.name not in (*BESIDE, _HARMLESS)
            ):
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
            is_flag = name in BESIDE[1:] and isinstance(kind, LISTS) and pa.types.is_boolean(kind.value_type)
            if not is_flag and not (isinstance(kind, LISTS) and pa.types.is_integer(kind.value_type)):
                raise InputError(f"{url}: column {name!r} is {kind}, not lists of integers; write it as such lists")
        return names

    def rows(self, batch: RowBatch, url: str, place_of: PlaceOf) -> Iterator[Rows]:
        """See Columns.rows; raises InputError if labels or masks are not those of the ids of their row."""
        lengths = _flat(batch.columns.column(IDS))[1] if len(batch.rows) else np.empty(0, np.int64)
        for start, end in runs_of(np.concatenate([[0], np.cumsum(lengths)]), BATCH_TOKENS) or [(0, 0)]:
            some = batch.slice(start, end)
            yield from self.reported(self._documents_of(some, place_of))

    def _documents_of(self, batch: RowBatch, place_of: PlaceOf) -> Rows:
        documents = _without_padding(batch, place_of, self._has_mask)
        ids = _unsigned(documents.ids)
        limit = min(self._vocab_size, np.iinfo(documents.ids.dtype).max + 1)  # a negative id is above it
        if ids.max(initial=0) >= limit:
            good = self._without_outside(batch, documents, np.flatnonzero(ids >= limit), place_of)
            return self._documents_of(good, place_of)
        ends = np.cumsum(documents.lengths)
        starts = ends - documents.lengths
        has_bos = _equals(ids, starts, starts < ends, self._bos_id)
        has_eot = _equals(ids, ends - 1, starts + has_bos < ends, self._eot_id)
        is_inside = np.ones(len(ids), bool)
        is_inside[starts[has_bos]] = False
        is_inside[ends[has_eot] - 1] = False
        offsets = np.concatenate([[0], np.cumsum(documents.lengths - has_bos - has_eot)])
        texts, masks, learned = _binary(ids[is_inside].astype("<u4"), offsets * ID_BYTES), None, documents.learned
        if learned is not None:
            around = [] if self._bos_id is None else [_equals(learned, starts, has_bos, True)]
            around.append(_equals(learned, ends - 1, has_eot, True))
            masks = _masks(learned[is_inside], offsets, np.stack(around, axis=1))
        return Rows(texts, documents.rows, bad=batch.bad, masks=masks)

    def _without_outside(self, batch: RowBatch, documents: _Documents, at: Int64s, place_of: PlaceOf) -> RowBatch:
        """Return the batch with the documents whose ids `at` some places are outside of the vocabulary as bad rows."""
        ends = np.cumsum(documents.lengths)
        outside, first = np.unique(np.searchsorted(ends, at, side="right"), return_index=True)
        bad = list(batch.bad)
        for document, position in zip(outside.tolist(), at[first].tolist(), strict=True):
            token = position - int(ends[document] - documents.lengths[document])
            problem = BadValue(
                f"its token {token:,} is {documents.ids[position]}, outside of the vocabulary [0, "
                f"{self._vocab_size:,}); check tokenizer.vocab_size and the type of the ids, or repair the file",
                "unknown_id",
            )
            row = int(documents.rows[document])
            bad.append(problem.at(place_of(row), row))
        is_kept = np.ones(len(batch.rows), bool)
        is_kept[outside] = False
        in_order = tuple(sorted(bad, key=lambda row: row.row))
        return replace(batch, columns=batch.columns.filter(pa.array(is_kept)), rows=batch.rows[is_kept], bad=in_order)


def _equals(values: AnyArray, at: Int64s, is_there: NDArray[np.bool_], wanted: int | None) -> NDArray[np.bool_]:
    """Return whether the values at n positions equal one, (n,); False where `is_there` is, and for None."""
    found = np.zeros(len(at), bool)
    if wanted is not None:
        found[is_there] = values[at[is_there]] == wanted
    return found


def _without_padding(batch: RowBatch, place_of: PlaceOf, has_mask: bool) -> _Documents:
    """Return the documents of a batch without padding; a row without a list has no ids."""
    if not len(batch.rows):
        nothing = np.empty(0, np.uint32), np.empty(0, np.int64), batch.rows
        return _Documents(*nothing, np.empty(0, bool) if has_mask else None)
    ids, lengths = _flat(batch.columns.column(IDS))
    names = [name for name in BESIDE if name in batch.columns.schema.names]
    beside = {name: _beside(batch, name, lengths, place_of) for name in names}
    if LABELS in beside:
        _check_labels(beside[LABELS], ids, lengths, batch.rows, place_of)
    learned = np.ones(len(ids), bool) if has_mask else None
    for name in beside.keys() - {ATTENTION}:
        learned &= beside[name] != (IGNORED if name == LABELS else 0)
    if ATTENTION in beside:
        is_text = beside[ATTENTION] != 0
        _check_padding(is_text, lengths, batch.rows, place_of)
        lengths = _sums(is_text, lengths)
        ids, learned = ids[is_text], None if learned is None else learned[is_text]
    return _Documents(ids, lengths, batch.rows, learned)


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


def _beside(batch: RowBatch, name: str, lengths: Int64s, place_of: PlaceOf) -> NDArray[np.integer[Any]]:
    """Return the values of a column beside the ids, end to end; raises InputError if they are not as it should have."""
    values, found = _flat(batch.columns.column(name))
    if (uneven := lengths != found).any():
        i = int(uneven.argmax())
        raise InputError(
            f"{place_of(int(batch.rows[i]))}: {lengths[i]:,} ids and {found[i]:,} {name}; repair the row, or write the "
            f"rows without {name}"
        )
    if name != LABELS and (wrong := (values != 0) & (values != 1)).any():
        at = int(wrong.argmax())
        raise InputError(
            f"{place_of(_row_at(at, lengths, batch.rows))}: {name} is {values[at]}, not 0 or 1; correct it, or write "
            f"the rows without {name}"
        )
    return values


def _row_at(position: int, lengths: Int64s, numbers: NDArray[np.uint64]) -> int:
    return int(numbers[np.searchsorted(np.cumsum(lengths), position, side="right")])


def _check_labels(
    labels: NDArray[np.integer[Any]], ids: AnyArray, lengths: Int64s, numbers: NDArray[np.uint64], place_of: PlaceOf
) -> None:
    if (wrong := (labels != IGNORED) & (labels != ids)).any():
        at = int(wrong.argmax())
        raise InputError(
            f"{place_of(_row_at(at, lengths, numbers))}: a label is {labels[at]} where the id is {ids[at]}; labels "
            "are the ids of the same tokens, not shifted, or -100: correct them, or write the rows without labels"
        )


def _check_padding(is_text: NDArray[np.bool_], lengths: Int64s, numbers: NDArray[np.uint64], place_of: PlaceOf) -> None:
    """Raise InputError if a row has padding within its ids: tokens that are not neighbours would be joined."""
    begins = is_text.copy()
    begins[1:] &= ~is_text[:-1]
    first = (np.cumsum(lengths) - lengths)[lengths > 0]
    begins[first] = is_text[first]
    if (cut := _sums(begins, lengths) > 1).any():
        raise InputError(
            f"{place_of(int(numbers[cut.argmax()]))}: {ATTENTION} is 0 within the row; zeros are padding, at its ends "
            f"alone: write the parts as rows of their own, or the rows without {ATTENTION}"
        )


def _unsigned(ids: AnyArray) -> AnyArray:
    """Return ids as unsigned values of the same width."""
    return ids if ids.dtype.kind == "u" else ids.view(f"{ids.dtype.byteorder}u{ids.dtype.itemsize}".replace("|", ""))


def _masks(learned: NDArray[np.bool_], offsets: Int64s, around: NDArray[np.bool_]) -> pa.Array:
    """Return (n,) bytes, 0 or 1 for each token of a document as it will be encoded: with the ids around it.

    Args:
        learned: of the documents without these ids, end to end.
        offsets: (n + 1,) where they begin in `learned` and, last, end.
        around: (n, 1 or 2) whether the id before a document, if there is one, and the one after it are targets.
    """
    num_around = around.shape[1]
    at = np.stack([offsets[:-1], offsets[1:]], axis=1)[:, -num_around:]
    mask = np.insert(learned.view(np.uint8), at.ravel(), around.ravel())
    return _binary(mask, offsets + num_around * np.arange(len(offsets)))


def _binary(values: AnyArray, offsets: Int64s) -> pa.Array:
    """Return (n,) large_binary over values without a copy, from (n + 1,) offsets in bytes."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets, np.int64)), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
