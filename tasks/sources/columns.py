"""Take the texts or conversations, the ids and the filter's columns of rows from record batches.

Every kind of source yields such batches. A row's texts become valid UTF-8 here, or the row is bad.

The path of a file may have columns, too, as Hive and Spark write them: year=2021/lang=en/part-0.parquet. A file's own
column of the same name comes first. Their values are text, and a filter's numbers are compared with the numbers that
they spell, as in CSV.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokenloom.errors import BadRow, InputError, message_of
from tokenloom.spec.syntax import (
    WHOLE_ROW,
    Comparison,
    Filter,
    Members,
    columns_of,
    comparisons_of,
    decided,
    parse_filter,
)
from tokenloom.storage.formats.arrays import runs_of
from tokenloom.tasks.sources.base import BATCH_BYTES, BadValue, Options, PlaceOf, RowBatch, Rows
from tokenloom.tasks.sources.filters import check_comparable, is_true, kept_rows
from tokenloom.tasks.sources.values import (
    LISTS,
    STRINGS,
    Decoding,
    field_type,
    has_column,
    pick,
    plain,
    value_type,
)

if TYPE_CHECKING:
    from tokenloom.tasks.sources.conversations import ConversationColumns

OPTION = "path_columns"  # the option of a file that maps columns to values
_NULL = "__HIVE_DEFAULT_PARTITION__"
_VALUE_BYTES = 8  # assumed for each value beside the texts of a conversation


class Columns:
    """Takes texts and ids from record batches.

    Args:
        options: see SourceReader; `text`, `messages`, `tools`, `id` and the columns of `filter` may be dotted, into
            structs.
    """

    def __init__(self, options: Options) -> None:
        self._conversations: ConversationColumns | None = None
        if options.get("messages") is not None:
            from tokenloom.tasks.sources.conversations import ConversationColumns  # not imported for texts

            self._conversations = ConversationColumns(options)
        self._text: str = options.get("text") or WHOLE_ROW  # not used if there are conversations
        self.id: str | None = options.get("id")
        self.filter: Filter | None = parse_filter(options["filter"]) if options.get("filter") else None
        self.path_columns: dict[str, str | None] = options.get(OPTION, {})
        self._skips = options.get("on_error") == "skip"
        self.decoding = Decoding(options)

    def needed(self, schema: pa.Schema, url: str) -> list[str]:
        """Return the dotted names of the columns to read; raises InputError if one is missing or of a wrong type."""
        names = self.documents(schema, url)
        if self.id is not None and not self._is_of_path(schema, self.id):
            kind = value_type(field_type(schema, self.id, url, "id"))
            if not (pa.types.is_integer(kind) or kind in STRINGS):
                raise InputError(
                    f"{url}: column {self.id!r} is {kind}; an id is a string or an integer. Set id: to such a column"
                )
            names.append(self.id)
        tree = self.filter_of(schema, url)
        for comparison in comparisons_of(tree) if tree else []:
            check_comparable(schema, comparison, url)
            names.append(comparison.column)
        return list(dict.fromkeys(names))

    def documents(self, schema: pa.Schema, url: str) -> list[str]:
        """Return the dotted names of the columns that hold the documents; raises InputError as `needed` does."""
        if self._conversations is not None:
            return self._conversations.names(schema, url)
        if self._is_of_path(schema, self._text):
            return []
        kind = field_type(schema, self._text, url, "text")
        items = plain_kind = value_type(kind)
        if isinstance(plain_kind, LISTS):
            items = plain_kind.value_type
            items = None if isinstance(items, pa.BaseExtensionType) else value_type(items)
        if items not in STRINGS:
            raise InputError(
                f"{url}: column {self._text!r} is {kind}; a text column holds strings, or lists of strings. "
                "Set text: to such a column, or messages: to one of conversations"
            )
        return [self._text]

    def _is_of_path(self, schema: pa.Schema, name: str) -> bool:
        return name in self.path_columns and not has_column(schema, name)

    def _pick(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        if self._is_of_path(batch.schema, name):
            return pa.repeat(pa.scalar(self.path_columns[name], pa.large_string()), len(batch))
        return pick(batch, name)

    def filter_of(self, schema: pa.Schema, url: str) -> Filter | None:
        """Return the filter of a file's rows, in which comparisons with columns of its path are decided.

        Raises InputError if one can't be compared.
        """

        def decide(comparison: Comparison | Members) -> bool | None:
            if not self._is_of_path(schema, comparison.column):
                return None
            try:
                return is_true(self.path_columns[comparison.column], comparison, parses_numbers=True)
            except BadValue as error:
                raise InputError(f"{url}: {message_of(error)}") from error

        return decided(self.filter, decide) if self.filter and self.path_columns else self.filter

    def rows(self, batch: RowBatch, url: str, place_of: PlaceOf) -> Iterator[Rows]:
        """Yield the documents of a batch, in batches of about BATCH_BYTES of text.

        Args:
            batch: with at least the needed columns.
            url: of the file, for messages.
            place_of: how a message names a row of it.
        """
        if not len(batch.rows):
            nothing = pa.array([], pa.large_string())
            left_out = batch.num_not_read
            ids = None if self.id is None else nothing
            yield from self.reported(
                Rows(nothing, batch.rows, ids, left_out, left_out, batch.bad, self._missing(batch))
            )
            return
        names = [self._text] if self._conversations is None else self._conversations.names(batch.columns.schema, url)
        lengths = sum(_text_lengths(self._pick(batch.columns, name)) for name in names)
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        for start, end in runs_of(offsets, BATCH_BYTES):
            yield from self.reported(self._rows(batch.slice(start, end), names, url, place_of))

    def reported(self, rows: Rows) -> Iterator[Rows]:
        """Yield a batch; unless bad rows are skipped, yield its rows up to the first bad one, and raise that."""
        if rows.bad and not self._skips:
            before = int(np.searchsorted(rows.rows, rows.bad[0].row))
            yield replace(rows.head(before), bad=())  # an earlier row may break the document rules
            raise rows.bad[0]
        yield rows

    def _rows(self, batch: RowBatch, names: list[str], url: str, place_of: PlaceOf) -> Rows:
        columns, numbers = batch.columns, batch.rows
        documents = [plain(self._pick(columns, name)) for name in names]
        if self._conversations is None and isinstance(documents[0].type, LISTS):
            documents = [_joined(documents[0])]
        raw_ids = None if self.id is None else plain(self._pick(columns, self.id))
        num_filtered = batch.num_not_read
        kept = batch.kept
        if kept is None and (tree := self.filter_of(columns.schema, url)) is not None:
            kept = kept_rows(columns, tree, url)
        if kept is not None:
            mask = pa.array(kept)
            documents, numbers = [one.filter(mask) for one in documents], numbers[kept]
            raw_ids = None if raw_ids is None else raw_ids.filter(mask)
            num_filtered += int((~kept).sum())
        bad: dict[int, BadRow] = {}
        documents = [self._strings(one, numbers, place_of, bad) if one.type in STRINGS else one for one in documents]
        if self._conversations is None:
            texts = documents[0]
        else:
            texts = self._conversations.texts(dict(zip(names, documents, strict=True)), numbers, place_of, bad)
        ids = None if raw_ids is None else self._strings(raw_ids, numbers, place_of, bad)
        if bad:
            good = ~np.isin(numbers, np.array(list(bad), np.uint64))
            texts, numbers = texts.filter(pa.array(good)), numbers[good]
            ids = ids if ids is None else ids.filter(pa.array(good))
        in_order = tuple(sorted((*batch.bad, *bad.values()), key=lambda row: row.row))
        return Rows(texts, numbers, ids, num_filtered, batch.num_not_read, in_order, self._missing(batch))

    def _missing(self, batch: RowBatch) -> tuple[str, ...]:
        """Return the keys that no row of the partition has had so far."""
        of_conversations = self._conversations.missing_keys if self._conversations else ()
        return tuple(sorted({*batch.missing_keys, *of_conversations}))

    def _strings(
        self, values: pa.Array, numbers: NDArray[np.uint64], place_of: PlaceOf, bad: dict[int, BadRow]
    ) -> pa.Array:
        """Return values as valid UTF-8, (n,) large_string; invalid ones are repaired, or null and noted in `bad`."""
        try:
            if pa.types.is_integer(values.type):
                return values.cast(pa.large_string())
            strings = values.cast(pa.large_string())
            strings.validate(full=True)  # Arrow's decoders don't check that strings are UTF-8
            return strings
        except pa.ArrowInvalid:
            values = values.cast(pa.large_binary())
        texts: list[str | None] = []
        for value, row in zip(values.to_pylist(), numbers.tolist(), strict=True):
            try:
                texts.append(None if value is None else self.decoding.decode(value))
            except BadValue as error:
                texts.append(None)
                bad[row] = error.at(place_of(row), row)
        return pa.array(texts, pa.large_string())


def _joined(values: pa.Array) -> pa.Array:
    """Return lists of strings as strings with one item on each line; null items are left out."""
    items = values.cast(pa.large_list(pa.large_binary()))
    if items.flatten().null_count:
        lists = [row and [item for item in row if item is not None] for row in items.to_pylist()]
        items = pa.array(lists, pa.large_list(pa.large_binary()))
    return pc.binary_join(items, pa.scalar(b"\n", pa.large_binary()))


def _text_lengths(values: pa.Array) -> NDArray[np.int64]:
    """Return the approximate number of bytes in the text of each row, (n,)."""
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if pa.types.is_dictionary(values.type):
        lengths = _text_lengths(values.dictionary)
        indices = pc.fill_null(values.indices, 0).to_numpy(zero_copy_only=False)
        return lengths[indices] if len(lengths) else np.zeros(len(values), np.int64)
    if isinstance(values.type, LISTS):
        items = values.flatten()
        item_bytes = np.concatenate([[0], np.cumsum(_text_lengths(items) + 1)])
        ends = np.cumsum(pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False), dtype=np.int64)
        return np.diff(item_bytes[ends], prepend=0)
    if pa.types.is_struct(values.type):
        return sum(map(_text_lengths, values.flatten()), np.zeros(len(values), np.int64))
    if not (values.type in STRINGS or pa.types.is_null(values.type)):
        return np.full(len(values), _VALUE_BYTES)
    lengths = pc.binary_length(values.cast(pa.large_binary()))
    found: NDArray[np.int64] = pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False)
    return found


def path_columns(path: str, options: Options) -> dict[str, Any]:
    """Return the option with the columns of a path that a source names as filter, id or text; {} if there are none.

    They decide how the file is read, so the names of its spills cover them.

    Args:
        path: relative to the root of the source.
        options: those of the source; the files of a Hugging Face source, which has a `split`, are read by the rules of
            the package, which has no such columns.

    Raises InputError for a value that is not UTF-8 in its URL encoding.
    """
    named = {options.get("id"), options.get("text")}
    named.update(columns_of(parse_filter(options["filter"])) if options.get("filter") else [])
    columns: dict[str, str | None] = {}
    for folder in path.split("/")[:-1]:
        name, mark, value = folder.partition("=")
        if mark and (name := _decoded(name, path)) in named:
            columns[name] = None if value == _NULL else _decoded(value, path)
    return {OPTION: columns} if columns and "split" not in options else {}


def _decoded(text: str, path: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: {text!r} is not UTF-8 in its URL encoding; rename the folder") from error
