"""Find columns of Arrow schemas and batches by dotted names, into structs."""

from __future__ import annotations

from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.errors import InputError
from tokenloom.tasks.sources.rows.shown_names import change_option, column_error, shown_names, wanted_column

_UUID, _JSON = "arrow.uuid", "arrow.json"  # extension types that parquet's logical types become


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
            wanted, change = wanted_column(key, name), change_option(key).capitalize()
            raise InputError(f"{url}: no column {wanted}: {_inside(parent, kind)}. {change} a column")
        parent = f"{parent}.{part}"
        kind = kind.field(part).type
    return kind


def _inside(name: str, kind: pa.DataType) -> str:
    """Return how a message describes the fields of a column."""
    if not pa.types.is_struct(kind):
        return f"column {name!r} is {kind}, which has no fields"
    return f"the fields of {name!r} are: {shown_names(field.name for field in kind)}"


def is_list(kind: pa.DataType) -> bool:
    """Return whether a type is one of lists, of any length and kind of offsets."""
    types = pa.types
    return any(test(kind) for test in (types.is_list, types.is_large_list, types.is_fixed_size_list))


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
    if _is_extension(values.type, _UUID):
        values = pa.array([None if value is None else str(value) for value in values.to_pylist()], pa.large_string())
    if _is_extension(values.type, _JSON):
        values = values.storage
    if pa.types.is_string_view(values.type):
        return values.cast(pa.large_string())
    return values.cast(pa.large_binary()) if pa.types.is_binary_view(values.type) else values


def value_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of a column's values: of a dictionary, the type of its entries; UUIDs and JSON are strings."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if _is_extension(kind, _JSON):
        return kind.storage_type
    return pa.large_string() if _is_extension(kind, _UUID) else kind


def _is_extension(kind: pa.DataType, name: str) -> bool:
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == name
