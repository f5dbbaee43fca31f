"""Take the texts or conversations, the ids and the filter's columns of rows from record batches.

Every kind of source yields such batches. A row's texts become valid UTF-8 here, or the row is bad. Conversations are
lists of structs, JSON text, or JSON text of whole rows; they are normalized before anything is counted or limited, so
that one is the same from every kind.

The path of a file may have columns, too, as Hive and Spark write them: year=2021/lang=en/part-0.parquet. A file's own
column of the same name comes first. Their values are text, and a filter's numbers are compared with the numbers that
they spell, as in CSV.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokenloom.chat.conversation import NOT_CONVERSATION, canonical
from tokenloom.chat.layouts import PAIR_KEYS, PAIRS, ROW_KEYS, normalized, refuse_pair
from tokenloom.chat.messages import refuse_media
from tokenloom.errors import BadConversation, BadRow, InputError, message_of
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
from tokenloom.storage.formats.arrays import offsets_of, runs_of
from tokenloom.tasks.sources.base import BATCH_BYTES, WANTED, BadValue, Options, PlaceOf, RowBatch, Rows
from tokenloom.tasks.sources.filters import check_comparable, is_true, kept_rows
from tokenloom.tasks.sources.values import (
    LISTS,
    STRINGS,
    Decoding,
    column_error,
    field_type,
    has_column,
    look_up,
    parse_json,
    pick,
    plain,
    value_at,
    value_type,
)

OPTION = "path_columns"  # the option of a file that maps columns to values
_NULL = "__HIVE_DEFAULT_PARTITION__"
_VALUE_BYTES = 8  # assumed for each value beside the texts of a conversation
_SYSTEM = "system"  # the key of a system prompt beside a conversation
_TOOLS = "tools"  # the key of the tools where the source names none


class Columns:
    """Takes texts and ids from record batches.

    Args:
        options: see SourceReader; `text`, `messages`, `tools`, `id` and the columns of `filter` may be dotted, into
            structs.
    """

    def __init__(self, options: Options) -> None:
        self._conversations = None if options.get("messages") is None else ConversationColumns(options)
        self._text: str = options.get("text") or WHOLE_ROW  # not used if there are conversations
        self.id: str | None = options.get("id")
        self.partition_bytes: int | None = options.get("partition_bytes")  # None for the default
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
        names = [self._text] if self._conversations is None else self._conversations.names(batch.columns.schema, url)
        lengths = np.sum([_text_lengths(self._pick(batch.columns, name)) for name in names], axis=0)
        for start, end in runs_of(offsets_of(lengths), BATCH_BYTES) or [(0, 0)]:
            yield from self.reported(self._rows(batch.slice(start, end), names, url, place_of))

    def reported(self, rows: Rows) -> Iterator[Rows]:
        """Yield a batch; unless bad rows are skipped, yield its rows up to the first bad one, and raise that."""
        if rows.bad and not self._skips:
            before = int(np.searchsorted(rows.rows, rows.bad[0].row))
            yield replace(rows.head(before), bad=())  # an earlier row may break the document rules
            raise rows.bad[0]
        yield rows

    def _rows(self, batch: RowBatch, names: list[str], url: str, place_of: PlaceOf) -> Rows:
        columns = batch.columns
        numbers = batch.rows
        documents = [plain(self._pick(columns, name)) for name in names]
        if self._conversations is None and isinstance(documents[0].type, LISTS):
            documents = [_joined(documents[0])]
        raw_ids = None if self.id is None else plain(self._pick(columns, self.id))
        num_filtered = batch.num_not_read
        kept = batch.kept
        if kept is None and (tree := self.filter_of(columns.schema, url)) is not None:
            kept = kept_rows(columns, tree)
        if kept is not None:
            mask = pa.array(kept)
            documents = [one.filter(mask) for one in documents]
            numbers = numbers[kept]
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
            texts = texts.filter(pa.array(good))
            numbers = numbers[good]
            ids = ids if ids is None else ids.filter(pa.array(good))
        in_order = tuple(sorted((*batch.bad, *bad.values()), key=lambda row: row.row))
        missing_keys = set(batch.missing_keys)
        if self._conversations is not None:
            missing_keys |= self._conversations.missing_keys
        return Rows(texts, numbers, ids, num_filtered, batch.num_not_read, in_order, tuple(sorted(missing_keys)))

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
        item_bytes = offsets_of(_text_lengths(items) + 1)
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


class ConversationColumns:
    """Makes the texts of the conversations that a source names.

    Args:
        options: see SourceReader; without a `layout`, the texts are JSON of what the rows hold, to recognize it from.

    Attributes:
        missing_keys: the key of the tools if the source names it and no row of JSON has had it so far.
    """

    def __init__(self, options: Options) -> None:
        self._key: str = options["messages"]
        self._tools: str = options.get("tools") or _TOOLS
        self._names_tools = options.get("tools") is not None
        self.missing_keys = {self._tools} if self._names_tools else set[str]()
        self._refuses_pairs = self._key.split(".")[0] not in PAIR_KEYS  # a source may name one side of the pairs
        self._layout: str | None = options.get("layout")
        self._wanted: Collection[int] | None = options.get(WANTED)
        self._decoding = Decoding(options)

    def names(self, schema: pa.Schema, url: str) -> list[str]:
        """Return the dotted names of the columns that hold conversations, their tools and system prompts.

        Args:
            schema: a file's schema.
            url: for messages.

        Raises InputError if one is missing or of a wrong type, or if the rows are preference pairs.
        """
        if WHOLE_ROW in schema.names:
            return [WHOLE_ROW]
        if self._refuses_pairs and all(key in schema.names for key in PAIR_KEYS):
            raise InputError(f"{url}, each row: {PAIRS}")
        names = [self._key]
        if self._key == WHOLE_ROW:
            names = [key for key in ROW_KEYS if key in schema.names]
        elif not _may_hold(kind := value_type(field_type(schema, self._key, url, "messages"))):
            raise InputError(
                f"{url}: column {self._key!r} is {kind}; a column of conversations holds lists of structs, or JSON "
                "text. Set messages: to such a column"
            )
        if not names:
            raise column_error(url, "messages", " or ".join(ROW_KEYS), schema.names)
        self.missing_keys = set()
        if self._names_tools or has_column(schema, self._tools):
            field_type(schema, self._tools, url, "tools")  # raises if there is no such column, or two
            names.append(self._tools)
        return [*names, *[_SYSTEM] * (_SYSTEM in schema.names and _SYSTEM not in names)]

    def texts(
        self, columns: dict[str, pa.Array], numbers: NDArray[np.uint64], place_of: PlaceOf, bad: dict[int, BadRow]
    ) -> pa.Array:
        """Return the texts of conversations, (n,) large_string; null, and noted in `bad`, for those that are none.

        Args:
            columns: the columns that `names` names, of n rows.
            numbers: (n,) the numbers of the rows.
            place_of: how a message names a row.
            bad: rows that are bad already, whose texts do not matter.
        """
        # the strings in a struct need not be UTF-8, so they are decoded one row at a time
        values = [one if pa.types.is_nested(one.type) else one.to_pylist() for one in columns.values()]
        texts: list[str | None] = []
        for row, *found in zip(numbers.tolist(), *values, strict=True):
            text = None
            if row not in bad and (self._wanted is None or row in self._wanted):
                try:
                    decoded = [value.as_py() if isinstance(value, pa.Scalar) else value for value in found]
                    text = self._text(dict(zip(columns, decoded, strict=True)))
                except UnicodeDecodeError:
                    problem = BadValue("invalid UTF-8 in its conversation; repair the file", "invalid_utf8")
                    bad[row] = problem.at(place_of(row), row)
                except BadValue as error:
                    bad[row] = error.at(place_of(row), row)
            texts.append(text)
        return pa.array(texts, pa.large_string())

    def _text(self, parts: dict[str, Any]) -> str | None:
        """Return the text of a row, None if it has no conversation; raises BadValue if it has something else."""
        row = parse_json(parts[WHOLE_ROW]) if WHOLE_ROW in parts else parts
        value = row if self._key == WHOLE_ROW else value_at(row, self._key, "messages")
        has_tools, tools = look_up(row, self._tools)
        if has_tools:
            self.missing_keys.discard(self._tools)
        system = None
        try:
            if isinstance(row, Mapping):
                refuse_media("it", row)
                if self._refuses_pairs:
                    refuse_pair(row)
                system = row.get(_SYSTEM)
            if value is None or value == "":  # CSV's null
                return None
            if self._layout is None:
                text = json.dumps(value, default=str)
            else:
                text = canonical(normalized(value, self._layout, tools, system))
        except BadConversation as error:
            raise BadValue(str(error), error.reason) from error
        except RecursionError as error:  # a value that is not normalized has no limit of depth
            raise BadValue("nested too deeply; repair the row", NOT_CONVERSATION) from error
        return self._decoding.clean(text, "conversation")


def _may_hold(kind: pa.DataType) -> bool:
    if isinstance(kind, LISTS):
        return bool(pa.types.is_struct(kind.value_type))
    return kind in STRINGS or pa.types.is_struct(kind) or pa.types.is_null(kind)
