"""Columns of Arrow record batches: the texts and ids of rows, and which rows a filter keeps.

The columnar twin of fields.py, for kinds that are read in batches: parquet, Arrow, Hugging Face datasets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import reduce
from math import ceil, floor, isfinite
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokenloom.errors import BadRow, InputError, said
from tokenloom.spec.row_filter import Comparison, Filter, comparisons_of, parse_filter
from tokenloom.tasks.sources.base import BATCH_BYTES, Rows
from tokenloom.tasks.sources.rows.fields import ways_out
from tokenloom.tasks.sources.rows.shown_names import shown_names

_KERNELS = {"==": "equal", "!=": "not_equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}


class Columns:
    """Takes texts and ids from record batches.

    Args:
        options: see SourceReader; `text`, `id` and the columns of `filter` may be dotted, into structs.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.text: str = options["text"]
        self.id: str | None = options.get("id")
        self.filter: Filter | None = parse_filter(options["filter"]) if options.get("filter") else None
        self._skips = options.get("on_error") == "skip"
        self._replaces = options.get("encoding_errors") == "replace"
        self._ways_out = ways_out(options)

    def needed(self, schema: pa.Schema, url: str) -> list[str]:
        """Return the dotted names of the columns to read; raises InputError if one is missing or of a wrong type."""
        kind = _field_type(schema, self.text, url, "text")
        if not _is_text(kind):
            raise InputError(
                f"{url}: column {self.text!r} is {kind}; a text column is of strings, or of lists of them. "
                "Set text: to such a column"
            )
        names = [self.text]
        if self.id is not None:
            kind = _value_type(_field_type(schema, self.id, url, "id"))
            if not (pa.types.is_integer(kind) or _is_string(kind)):
                raise InputError(
                    f"{url}: column {self.id!r} is {kind}; an id is a string or an integer. Set id: to such a column"
                )
            names.append(self.id)
        for comparison in comparisons_of(self.filter) if self.filter else []:
            _check_comparable(schema, comparison, url)
            names.append(comparison.column)
        return list(dict.fromkeys(names))

    def rows(self, batch: pa.RecordBatch, first_row: int, url: str) -> Iterator[Rows]:
        """Yield the rows of a batch with about BATCH_BYTES of text each.

        Args:
            batch: with the needed columns.
            first_row: number of its first row in the file.
            url: for messages.
        """
        for start, end in _slices(_pick(batch, self.text)):
            yield self._rows(batch.slice(start, end - start), first_row + start, url)

    def _rows(self, batch: pa.RecordBatch, first_row: int, url: str) -> Rows:
        numbers = np.arange(first_row, first_row + len(batch), dtype=np.uint64)
        raw_texts = _joined(_plain(_pick(batch, self.text)))
        raw_ids = None if self.id is None else _plain(_pick(batch, self.id))
        kept, num_filtered = self._kept(batch, url), 0
        if kept is not None:
            mask, num_filtered = pa.array(kept), int((~kept).sum())
            raw_texts, numbers = raw_texts.filter(mask), numbers[kept]
            raw_ids = None if raw_ids is None else raw_ids.filter(mask)
        bad: dict[int, BadRow] = {}
        texts = self._strings(raw_texts, numbers, url, bad)
        ids = None if raw_ids is None else self._strings(raw_ids, numbers, url, bad)
        if bad and not self._skips:
            raise bad[min(bad)]
        if bad:
            good = ~np.isin(numbers, np.array(list(bad), np.uint64))
            texts, numbers = texts.filter(pa.array(good)), numbers[good]
            ids = ids if ids is None else ids.filter(pa.array(good))
        return Rows(texts, numbers, ids, num_filtered=num_filtered, bad=tuple(bad[row] for row in sorted(bad)))

    def _kept(self, batch: pa.RecordBatch, url: str) -> NDArray[np.bool_] | None:
        if self.filter is None:
            return None
        try:
            mask = _mask(batch, self.filter)
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise InputError(
                f"{url}: the filter can't compare a column: {said(error)}; check its value's type"
            ) from error
        kept: NDArray[np.bool_] = pc.fill_null(mask, False).to_numpy(zero_copy_only=False)
        return kept

    def _strings(self, values: pa.Array, numbers: NDArray[np.uint64], url: str, bad: dict[int, BadRow]) -> pa.Array:
        """Return values as (n,) large_string, all valid UTF-8; those that are not are replaced, or put into `bad`."""
        try:
            if pa.types.is_integer(values.type):
                return values.cast(pa.large_string())
            strings = values.cast(pa.large_string())
            strings.validate(full=True)  # decoders do not check that strings are UTF-8
            return strings
        except pa.ArrowInvalid:
            return self._mended(values.cast(pa.large_binary()), numbers, url, bad)

    def _mended(self, values: pa.Array, numbers: NDArray[np.uint64], url: str, bad: dict[int, BadRow]) -> pa.Array:
        texts: list[str | None] = []
        for value, row in zip(values.to_pylist(), numbers.tolist(), strict=True):
            try:
                texts.append(
                    None if value is None else value.decode("utf-8", "replace" if self._replaces else "strict")
                )
            except UnicodeDecodeError as error:
                texts.append(None)
                bad[row] = BadRow(
                    f"{url}, row {row}: invalid UTF-8 at byte {error.start}; {self._ways_out}",
                    row,
                    "invalid_utf8",
                )
        return pa.array(texts, pa.large_string())


def _path(schema: pa.Schema, name: str) -> list[str]:
    """Return the way to a column: a name that is spelled with its dots comes first."""
    return [name] if name in schema.names or not name.strip(".") else name.split(".")


def _field_type(schema: pa.Schema, name: str, url: str, key: str) -> pa.DataType:
    first, *rest = _path(schema, name)
    if schema.names.count(first) != 1:
        found = "two columns" if first in schema.names else "no column"
        raise InputError(
            f"{url}: {found} {name!r}; its columns are: {shown_names(schema.names)}. Set {key}: to one of them"
        )
    kind = schema.field(first).type
    parent = first
    for part in rest:
        if not pa.types.is_struct(kind) or kind.get_field_index(part) < 0:
            raise InputError(f"{url}: no column {name!r}: {_inside(parent, kind)}. Set {key}: to a column")
        parent = f"{parent}.{part}"
        kind = kind.field(part).type
    return kind


def _inside(name: str, kind: pa.DataType) -> str:
    """Return what a message says of the fields of a column."""
    if not pa.types.is_struct(kind):
        return f"column {name!r} is {kind}, which has no fields"
    return f"the fields of {name!r} are: {shown_names(field.name for field in kind)}"


def _pick(batch: pa.RecordBatch, name: str) -> pa.Array:
    first, *rest = _path(batch.schema, name)
    return reduce(pc.struct_field, rest, batch.column(first))


def _plain(values: pa.Array) -> pa.Array:
    """Return values without a dictionary and not as views, which few kernels take."""
    if pa.types.is_dictionary(values.type):
        values = pa.DictionaryArray.from_arrays(values.indices, _plain(values.dictionary)).dictionary_decode()
    if pa.types.is_string_view(values.type):
        return values.cast(pa.large_string())
    return values.cast(pa.large_binary()) if pa.types.is_binary_view(values.type) else values


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_string(kind: pa.DataType) -> bool:
    types = pa.types
    return any(test(kind) for test in (types.is_string, types.is_large_string, types.is_string_view)) or any(
        test(kind) for test in (types.is_binary, types.is_large_binary, types.is_binary_view)
    )


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return any(test(kind) for test in (types.is_list, types.is_large_list, types.is_fixed_size_list))


def _is_text(kind: pa.DataType) -> bool:
    kind = _value_type(kind)
    return _is_string(kind) or (_is_list(kind) and _is_string(_value_type(kind.value_type)))


def _joined(values: pa.Array) -> pa.Array:
    """Return lists of strings as strings, their items one a line; nulls among the items are left out."""
    if not _is_list(values.type):
        return values
    items = values.cast(pa.large_list(pa.large_binary()))
    if items.flatten().null_count:
        lists = [row and [item for item in row if item is not None] for row in items.to_pylist()]
        items = pa.array(lists, pa.large_list(pa.large_binary()))
    return pc.binary_join(items, pa.scalar(b"\n", pa.large_binary()))


def _text_lengths(values: pa.Array) -> NDArray[np.int64]:
    """Return about how many bytes the text of each row takes, (n,)."""
    if pa.types.is_dictionary(values.type):
        lengths = _text_lengths(values.dictionary)
        indices = pc.fill_null(values.indices, 0).to_numpy(zero_copy_only=False)
        return lengths[indices] if len(lengths) else np.zeros(len(values), np.int64)
    if _is_list(values.type):
        items = values.flatten()
        item_bytes = np.concatenate([[0], np.cumsum(_text_lengths(items) + 1)])
        ends = np.cumsum(pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False), dtype=np.int64)
        return np.diff(item_bytes[ends], prepend=0)
    lengths = pc.binary_length(values.cast(pa.large_binary()))
    found: NDArray[np.int64] = pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False)
    return found


def _slices(values: pa.Array) -> Iterator[tuple[int, int]]:
    """Yield runs [start, end) of rows of about BATCH_BYTES of text; a longer text is a run of its own."""
    ends = np.cumsum(_text_lengths(values), dtype=np.int64)
    start = 0
    while start < len(ends):
        base = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, base + BATCH_BYTES, side="right")))
        yield start, end
        start = end


def _mask(batch: pa.RecordBatch, tree: Filter) -> pa.Array:
    if not isinstance(tree, Comparison):
        return reduce(pc.and_kleene if tree.is_all else pc.or_kleene, (_mask(batch, part) for part in tree.parts))
    values = _plain(_pick(batch, tree.column))
    return pc.call_function(_KERNELS[tree.operator], [values, _scalar(tree, values.type)])


def _check_comparable(schema: pa.Schema, comparison: Comparison, url: str) -> None:
    kind = _value_type(_field_type(schema, comparison.column, url, "filter"))
    try:
        none = _plain(pa.array([], kind))
        pc.call_function(_KERNELS[comparison.operator], [none, _scalar(comparison, none.type)])
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InputError(
            f"{url}: the filter can't compare column {comparison.column!r}, which is {kind}, with "
            f"{comparison.value!r}; check the value's type"
        ) from error


def _scalar(comparison: Comparison, kind: pa.DataType) -> pa.Scalar:
    """Return the value to compare a column of type `kind` with.

    An integer is of the column's own type where that can hold it: Arrow would read uint64 as int64, and no integer as
    decimal(38, 2).
    """
    value = comparison.value
    if isinstance(value, int | float) and not isinstance(value, bool) and pa.types.is_floating(kind):
        return pa.scalar(float(value))  # not the column as integers
    is_passed = comparison.operator not in ("==", "!=")  # 0.5 is passed between 0 and 1
    if (
        isinstance(value, float)
        and pa.types.is_integer(kind)
        and (value.is_integer() or (is_passed and isfinite(value)))
    ):
        value = ceil(value) if comparison.operator in ("<", ">=") else floor(value)
    if type(value) is int and (pa.types.is_integer(kind) or pa.types.is_decimal(kind)):
        with suppress(pa.ArrowInvalid, OverflowError):
            return pa.scalar(value, kind)
    return pa.scalar(value)
