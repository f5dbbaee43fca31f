"""Take documents from columns of ids: which ids are learned or padding, and which mark their begin and end.

Every format of tokens yields such columns: lists of ids, and beside them what says which ids are learned.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokenloom.errors import InputError
from tokenloom.storage.formats.arrays import AnyArray, Int64s, UInt64s, offsets_of, runs_of
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


def id_batch(ids: AnyArray, lengths: Int64s, rows: UInt64s, learned: AnyArray | None) -> RowBatch:
    """Return whole documents as a batch.

    Args:
        ids: (num_tokens,) of an integer type, with those that mark the begin and end of documents.
        lengths: (n,) tokens of each document.
        rows: (n,) their numbers.
        learned: (num_tokens,) 1 for each token that is a target, None for a file without a mask.
    """
    offsets = pa.array(offsets_of(lengths))
    columns = {IDS: ids} if learned is None else {IDS: ids, MASKS[-1]: learned}
    lists = [pa.LargeListArray.from_arrays(offsets, pa.array(values)) for values in columns.values()]
    return RowBatch(pa.RecordBatch.from_arrays(lists, list(columns)), rows)


class IdColumns(Columns):
    """Takes documents from columns of ids: `texts` of its rows are ids as little-endian uint32.

    Args:
        options: `vocab_size`, `eot_id`, `bos_id`, `on_error` and `has`, see TokenFormat.
        beside: those of BESIDE that the first file of a source has; None if they are not known.
    """

    def __init__(self, options: Options, beside: Collection[str] | None = None) -> None:
        super().__init__({"text": IDS, "partition_bytes": options.get("partition_bytes")})
        self._vocab_size = int(options["vocab_size"])
        self._eot_id = int(options["eot_id"])
        self._bos_id: int | None = options.get("bos_id")
        self._has_mask = MASK in options.get("has", ())
        self._skips = options.get("on_error") == "skip"
        self._beside = beside

    def documents(self, schema: pa.Schema, url: str) -> list[str]:
        """See Columns.documents; raises InputError also if not all files have the same columns of BESIDE."""
        names = [IDS, *(name for name in BESIDE if name in schema.names)]
        if self._beside is not None and (differing := set(self._beside).symmetric_difference(names[1:])):
            has = "has" if min(differing) in names else "lacks"
            raise InputError(
                f"{url}: it {has} {min(differing)}, unlike the first file of its source; read them as two sources"
            )
        if wrong := [name for name in names if schema.names.count(name) != 1]:
            raise InputError(
                f"{url}: not one column {wrong[0]!r}; its columns are: {shown_names(schema.names)}. Rename columns, so "
                f"that {IDS!r} has the ids"
            )
        for field in schema:
            kind = field.type.value_type if isinstance(field.type, LISTS) else None
            if field.name not in names:
                if kind is not None and _OF_THE_LOSS.search(field.name) and field.name != _HARMLESS:
                    raise InputError(
                        f"{url}: column {field.name!r} seems to say which ids are learned; write it as {MASKS[-1]}, 1 "
                        "for what is learned and 0 for the rest, or write the rows without it"
                    )
            elif not (kind and (pa.types.is_integer(kind) or (kind == pa.bool_() and field.name in BESIDE[1:]))):
                raise InputError(
                    f"{url}: column {field.name!r} is {field.type}, not lists of integers; write such lists"
                )
        return names

    def rows(self, batch: RowBatch, url: str, place_of: PlaceOf) -> Iterator[Rows]:
        """See Columns.rows; raises InputError if labels or masks are not those of the ids of their row."""
        offsets = offsets_of(_flat(batch.columns.column(IDS))[1])
        for start, end in runs_of(offsets, BATCH_TOKENS) or [(0, 0)]:
            yield from self.reported(self._documents_of(batch.slice(start, end), place_of))

    def _documents_of(self, batch: RowBatch, place_of: PlaceOf) -> Rows:
        ids, lengths, learned = self._without_padding(batch, place_of)
        outside = np.flatnonzero((ids < 0) | (ids >= self._vocab_size))
        if len(outside):
            return self._documents_of(self._without(batch, ids, lengths, outside, place_of), place_of)
        ends = np.cumsum(lengths)
        starts = ends - lengths
        has_bos = _equals(ids, starts, lengths > 0, self._bos_id)
        has_eot = _equals(ids, ends - 1, lengths > has_bos, self._eot_id)
        is_inside = np.ones(len(ids), bool)
        is_inside[starts[has_bos]] = False
        is_inside[ends[has_eot] - 1] = False
        offsets = offsets_of(lengths - has_bos - has_eot)
        texts = _binary(ids[is_inside].astype("<u4"), offsets * ID_BYTES)
        masks = None
        if learned is not None:  # of the ids around a document, those that the file lacks are no targets
            lacking = [ends[~has_eot]] if self._bos_id is None else [starts[~has_bos], ends[~has_eot]]
            mask = np.insert(learned.view(np.uint8), np.concatenate(lacking), 0)
            masks = _binary(mask, offsets + len(lacking) * np.arange(len(offsets)))
        return Rows(texts, batch.rows, bad=batch.bad, masks=masks)

    def _without_padding(self, batch: RowBatch, place_of: PlaceOf) -> tuple[AnyArray, Int64s, NDArray[np.bool_] | None]:
        """Return the ids of a batch without padding, their number in each row, and which are learned; None for all."""
        ids, lengths = _flat(batch.columns.column(IDS))
        learned = np.ones(len(ids), bool) if self._has_mask else None
        is_text = np.ones(len(ids), bool)
        for name in filter(batch.columns.schema.names.__contains__, BESIDE):
            is_set = _beside(batch, name, ids, lengths, place_of)
            if name == ATTENTION:
                is_text = is_set
            elif learned is not None:
                learned &= is_set
        if is_text.all():
            return ids, lengths, learned
        row_of = np.repeat(np.arange(len(lengths)), lengths)[is_text]
        is_apart = (np.diff(np.flatnonzero(is_text)) > 1) & (np.diff(row_of) == 0)
        if is_apart.any():  # tokens that are not neighbours would be joined
            raise InputError(
                f"{place_of(int(batch.rows[row_of[is_apart.argmax()]]))}: {ATTENTION} is 0 within the row; zeros are "
                f"padding, at its ends alone: write the parts as rows of their own, or the rows without {ATTENTION}"
            )
        lengths = np.bincount(row_of, minlength=len(lengths))
        return ids[is_text], lengths, None if learned is None else learned[is_text]

    def _without(self, batch: RowBatch, ids: AnyArray, lengths: Int64s, at: Int64s, place_of: PlaceOf) -> RowBatch:
        """Return the batch with the documents whose ids `at` some places are outside of the vocabulary as bad rows."""
        ends = np.cumsum(lengths)
        bad = list(batch.bad)
        outside, first = np.unique(np.searchsorted(ends, at, side="right"), return_index=True)
        for document, position in zip(outside.tolist(), at[first].tolist(), strict=True):
            token = position - int(ends[document] - lengths[document])
            row = int(batch.rows[document])
            problem = BadValue(
                f"its token {token:,} is {ids[position]}, outside of the vocabulary [0, {self._vocab_size:,}); check "
                "tokenizer.vocab_size and the type of the ids, or repair the file",
                "unknown_id",
            )
            bad.append(problem.at(place_of(row), row))
        good = np.delete(np.arange(len(batch.rows)), outside)
        in_order = tuple(sorted(bad, key=lambda row: row.row))
        return replace(batch, columns=batch.columns.take(pa.array(good)), rows=batch.rows[good], bad=in_order)


def _equals(values: AnyArray, at: Int64s, is_there: NDArray[np.bool_], wanted: int | None) -> NDArray[np.bool_]:
    """Return whether the values at n positions equal one, (n,); False where `is_there` is, and for None."""
    found = np.zeros(len(at), bool)
    if wanted is not None:
        found[is_there] = values[at[is_there]] == wanted
    return found


def _beside(batch: RowBatch, name: str, ids: AnyArray, lengths: Int64s, place_of: PlaceOf) -> NDArray[np.bool_]:
    """Return where a column beside the ids is set; raises InputError if its values are not as they should be."""
    values, counts = _flat(batch.columns.column(name))
    if (uneven := counts != lengths).any():
        i = int(uneven.argmax())
        problem = f"{lengths[i]:,} ids and {counts[i]:,} {name}; repair the row, or write the rows without {name}"
        raise InputError(f"{place_of(int(batch.rows[i]))}: {problem}")
    off, on = (IGNORED, ids) if name == LABELS else (0, 1)
    if (wrong := (values != off) & (values != on)).any():
        at = int(wrong.argmax())
        row = int(batch.rows[np.searchsorted(np.cumsum(lengths), at, side="right")])
        raise InputError(
            f"{place_of(row)}: column {name} has {values[at]} where the id is {ids[at]}; masks are 0 or 1, labels -100 "
            f"or the ids of the same tokens, not shifted: correct them, or write the rows without {name}"
        )
    return values != off  # type: ignore[no-any-return]


def _flat(lists: pa.Array) -> tuple[AnyArray, Int64s]:
    """Return the integers of some lists, end to end, and the length of each; a null is -1, which no vocabulary has."""
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    values = lists.flatten()
    if values.null_count:
        values = values.cast(pa.int64(), safe=False).fill_null(-1)  # one above 2^63 becomes negative
    return values.to_numpy(zero_copy_only=False), lengths


def _binary(values: AnyArray, offsets: Int64s) -> pa.Array:
    """Return (n,) large_binary over values without a copy, from (n + 1,) offsets in bytes."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets, np.int64)), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
