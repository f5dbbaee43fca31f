"""Values of rows by dotted names: in Arrow schemas and batches, and in JSON; text from bytes; names in messages.

An option such as `text` is the name of a column. The filter contains names of columns, so messages word it differently.
Offsets and indices are checked before any value is used: Arrow's decoders take them from the file unchecked, and might
read foreign memory or another row's text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.errors import InputError, message_of
from tokenloom.spec.syntax import WHOLE_ROW
from tokenloom.tasks.sources.base import BadValue, Options
from tokenloom.wording import first_of

LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)  # types of lists of any length and kind of offsets
STRINGS = (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view())
REPLACE = "replace bad bytes (documents.encoding_errors: replace)"
_TEXT_FILES = ("text", "jsonl", "csv")
_SURROGATES = re.compile("[\ud800-\udfff]")
_LONE = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_PLAIN = re.compile(r"[\w.-]+")
_MAX_NAMES = 50
_MAX_CHARS = 100
_BYTES = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}
_JSON_TYPES = {str: "a string", list: "an array", dict: "an object", bool: "a boolean", type(None): "null"}


def _path(schema: pa.Schema, name: str) -> list[str]:
    """Return the names on the way to a column; a column whose own name has the dots comes first."""
    return [name] if name in schema.names or not name.strip(".") else name.split(".")


def has_column(schema: pa.Schema, name: str) -> bool:
    """Return whether a schema has a column of a name, or one that the dotted name leads into."""
    return _path(schema, name)[0] in schema.names


def field_type(schema: pa.Schema, name: str, url: str, key: str) -> pa.DataType:
    """Return the type of a column; raises InputError if the schema does not have exactly one of that name.

    Args:
        schema: a file's schema.
        name: the column's name, dotted into structs.
        url: the file's path or URL, for messages.
        key: the key of the spec that names the column, for messages.
    """
    first, *rest = _path(schema, name)
    if schema.names.count(first) != 1:
        raise column_error(url, key, first if first in schema.names else name, schema.names)
    kind = schema.field(first).type
    parent = first
    for part in rest:
        if not pa.types.is_struct(kind) or kind.get_field_index(part) < 0:
            fields = [f"{parent}.{field.name}" for field in kind] if pa.types.is_struct(kind) else []
            raise column_error(url, key, name, [*schema.names, *fields])
        parent = f"{parent}.{part}"
        kind = kind.field(part).type
    return kind


def pick(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column of a batch by its dotted name."""
    first, *rest = _path(batch.schema, name)
    return reduce(pc.struct_field, rest, batch.column(first))


def plain(values: pa.Array) -> pa.Array:
    """Return values without dictionaries, views and extension types, which few of Arrow's functions accept.

    A UUID becomes its 36 characters, as other tools print it.
    """
    if pa.types.is_dictionary(values.type):
        values = pa.DictionaryArray.from_arrays(values.indices, plain(values.dictionary)).dictionary_decode()
    if isinstance(values.type, pa.UuidType):
        values = pa.array([None if value is None else str(value) for value in values.to_pylist()], pa.large_string())
    if isinstance(values.type, pa.JsonType):
        values = values.storage
    if pa.types.is_string_view(values.type):
        return values.cast(pa.large_string())
    return values.cast(pa.large_binary()) if pa.types.is_binary_view(values.type) else values


def value_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of a column's values: of a dictionary, the type of its entries; UUIDs and JSON are strings."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if isinstance(kind, pa.JsonType):
        return kind.storage_type
    return pa.large_string() if isinstance(kind, pa.UuidType) else kind


def shown_names(names: Iterable[str]) -> str:
    """Return a list of names to copy into a spec, with long names cut; "none" for no names.

    Example: ["text", "a, b", ""] -> 'text, "a, b", ""'
    """
    return first_of([_shown(str(name)) for name in names], _MAX_NAMES)


def _shown(name: str) -> str:
    if len(name) > _MAX_CHARS:
        name = name[:_MAX_CHARS] + "..."
    name = name if _PLAIN.fullmatch(name) else json.dumps(name, ensure_ascii=False)
    return name.encode("utf-8", "backslashreplace").decode()  # a lone surrogate can't be printed or logged


def column_error(url: str, key: str, name: str, names: Sequence[str], check: str = "") -> InputError:
    """Return the error for a column that a file does not have exactly once.

    Args:
        url: the file's path or URL.
        key: the key of the spec that names the column: text, id or filter.
        name: the column's name.
        names: those of all columns.
        check: what else may be wrong, before the advice to name another column.
    """
    found = "two columns" if name in names else "no column"
    wanted = repr(name)
    change = f"set {key}: to"
    if key == "filter":
        wanted = f"{wanted}, which the filter names"
        change = "change filter: to name"
    advice = f"{check}, or {change}" if check else change.capitalize()
    return InputError(f"{url}: {found} {wanted}; its columns are: {shown_names(names)}. {advice} one of them")


def json_type(value: Any) -> str:
    """Return the type of a JSON value with its article: "a number", "an object"."""
    return _JSON_TYPES.get(type(value), "a number")


def check_batch(batch: pa.RecordBatch) -> None:
    """Raise ArrowInvalid if a column's lengths, offsets or indices are out of its bounds.

    Strings may hold invalid UTF-8 (see Columns), so they are checked as bytes.
    """
    batch.validate()
    for column in batch.columns:
        column.view(_with_bytes(column.type)).validate(full=True)


def _with_bytes(kind: pa.DataType) -> pa.DataType:
    """Return a type with bytes in place of strings, and the storage of extension types; the buffers are the same."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _with_bytes(kind.storage_type)
    if types.is_struct(kind):
        return pa.struct([field.with_type(_with_bytes(field.type)) for field in kind])
    if types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _with_bytes(kind.value_type), kind.ordered)
    if isinstance(kind, LISTS):
        items = kind.value_field.with_type(_with_bytes(kind.value_type))
        if types.is_fixed_size_list(kind):
            return pa.list_(items, kind.list_size)
        return pa.large_list(items) if types.is_large_list(kind) else pa.list_(items)
    return _BYTES.get(kind, kind)


class Decoding:
    """Decodes the bytes of a source.

    Args:
        options: see SourceReader.

    Attributes:
        replaces: whether what is not valid becomes U+FFFD.
    """

    def __init__(self, options: Options) -> None:
        self.replaces = options.get("encoding_errors") == "replace"
        self._advice = "repair the file"
        if options.get("kind") in _TEXT_FILES:
            self._advice += ", or convert it, for example with iconv -f CP1252 -t UTF-8"

    def decode(self, data: bytes) -> str:
        """Return UTF-8 as text; raises BadValue."""
        try:
            return data.decode("utf-8", "replace" if self.replaces else "strict")
        except UnicodeDecodeError as error:
            raise self._bad(f"invalid UTF-8 at byte {error.start}") from error

    def clean(self, text: str, what: str) -> str:
        """Return a text without lone surrogates, which UTF-8 can't encode; raises BadValue."""
        if text.isascii() or not _SURROGATES.search(text):
            return text
        if self.replaces:  # bytes that were not UTF-8 are surrogates, too (PEP 383)
            return _LONE.sub("\ufffd", text).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        raise self._bad(f"invalid UTF-8, or a lone surrogate, in its {what}")

    def _bad(self, problem: str) -> BadValue:
        return BadValue(f"{problem}; {self._advice}", "invalid_utf8", REPLACE)


def parse_json(text: str) -> Any:
    """Return the JSON value in a text; raises BadValue."""
    try:
        return json.loads(text)
    except (RecursionError, ValueError) as error:
        reason = message_of(error)
        if isinstance(error, json.JSONDecodeError):  # its message counts lines from the row's start, not the file's
            reason = f"{error.msg}: character {error.pos + 1} of the row"
        raise BadValue(f"not valid JSON: {reason}; repair it", "invalid_json") from error


def look_up(value: Any, key: str) -> tuple[bool, Any]:
    """Return whether a row has a dotted key, and its value; a key that itself contains the dots comes first."""
    if isinstance(value, dict) and key in value:
        return True, value[key]
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            return False, None
        value = value[part]
        if value is None:  # everything under a null is null, as in parquet
            return True, None
    return True, value


def value_at(value: Any, key: str, option: str) -> Any:
    """Return the value of a dotted key of a row; raises BadValue if the row lacks it.

    Args:
        value: the row.
        key: the key.
        option: the option of the spec that names it, for messages.
    """
    has_key, found = look_up(value, key)
    if has_key:
        return found
    if isinstance(value, dict):
        keys = shown_names(value)
        raise BadValue(f"no key {key!r}; its keys are: {keys}. Set {option}: to one of them", "missing_key")
    step = f"repair the row, set text: {WHOLE_ROW} for rows that are texts, messages: {WHOLE_ROW} for conversations"
    raise BadValue(f"{json_type(value)} where an object with the key {key!r} is expected; {step}", "missing_key")
