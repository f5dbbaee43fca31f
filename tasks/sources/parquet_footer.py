"""The footer of a parquet file: where its columns are, how large they are, and which values they may hold."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import IO, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tokenloom.errors import InputError, message_of
from tokenloom.spec.row_filter import COMPARE, Comparison, Filter, Members, comparisons_of, holds
from tokenloom.tasks.sources.base import Group
from tokenloom.tasks.sources.column_names import field_type, value_type
from tokenloom.tasks.sources.filters import literal, units_per_second
from tokenloom.wording import counted

_DAY_MILLISECONDS = 86_400_000
_REPEATED_ROW_BYTES = 64  # rows that take less in the file may be a few long texts that repeat


def leaves_of(file: pq.ParquetFile, names: Sequence[str]) -> list[int]:
    """Return the positions of the leaf columns under dotted names."""
    paths = [file.schema.column(i).path for i in range(len(file.schema))]
    return [i for i, path in enumerate(paths) if any(path == name or path.startswith(name + ".") for name in names)]


def group_of(file: pq.ParquetFile, index: int, leaves: Sequence[int]) -> Group:
    """Return the size of a row group, of which the leaf columns `leaves` are read."""
    row_group = file.metadata.row_group(index)
    return Group(sum(row_group.column(i).total_uncompressed_size for i in leaves), row_group.num_rows)


def byte_ranges(file: pq.ParquetFile, groups: Iterable[int], leaves: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield where the column chunks of row groups are in the file, [start, end) each."""
    for group in groups:
        for column in map(file.metadata.row_group(group).column, leaves):
            start = column.data_page_offset
            if column.has_dictionary_page and column.dictionary_page_offset is not None:
                start = min(start, column.dictionary_page_offset)
            yield start, start + column.total_compressed_size


def check_decrypted(file: pq.ParquetFile, url: str, data: IO[bytes], names: Iterable[str]) -> None:
    """Raise InputError if a column is encrypted. The footer may not be; pyarrow ends the process if asked about it.

    Args:
        file: the open file.
        url: for messages.
        data: its bytes.
        names: dotted names of the columns.
    """
    data.seek(-8, os.SEEK_END)
    footer_bytes = int.from_bytes(data.read(4), "little")  # a signature makes it longer than its contents
    if footer_bytes == file.metadata.serialized_size or not file.metadata.num_row_groups:
        return
    for name in names:
        try:
            next(file.iter_batches(1, row_groups=[0], columns=[name], use_threads=False), None)
        except (pa.ArrowException, OSError) as error:
            raise InputError(
                f"{url}: column {name!r} is encrypted ({message_of(error)}); write the file again without encryption, "
                "or leave it out"
            ) from error


def check_counts(file: pq.ParquetFile, url: str, leaves: Sequence[int]) -> None:
    """Raise InputError if the footer contradicts itself on the rows and values of a row group.

    Rows beyond a number that is too small would not be read.
    """
    for group in range(file.metadata.num_row_groups):
        row_group = file.metadata.row_group(group)
        for i in leaves:
            column, num_values = file.schema.column(i), row_group.column(i).num_values
            is_one_each = column.max_repetition_level == 0
            if row_group.num_rows > num_values or (row_group.num_rows < num_values and is_one_each):
                raise InputError(
                    f"{url}, row group {group}: its footer says {counted(row_group.num_rows, 'row')}, and "
                    f"{counted(num_values, 'value')} of {column.path!r}: it is damaged; repair the file or leave it out"
                )


def repeated_leaves(file: pq.ParquetFile, groups: Sequence[int], leaves: Sequence[int]) -> list[str]:
    """Return the leaf columns to read as dictionaries: those whose rows take almost no space in the file.

    A million copies of one text are a dictionary of one text and a million small numbers. Decoded when it is read, a
    batch of them could take any amount of memory.
    """
    if any("view" in str(kind) for kind in file.schema_arrow.types):
        return []  # Arrow can't read a column as a dictionary if its schema calls the column a view
    row_groups = [file.metadata.row_group(i) for i in groups]
    return [
        file.schema.column(i).path
        for i in leaves
        if file.schema.column(i).physical_type == "BYTE_ARRAY"
        and any(g.column(i).total_uncompressed_size < _REPEATED_ROW_BYTES * g.num_rows for g in row_groups)
        and not any(code.startswith("DELTA") for g in row_groups for code in g.column(i).encodings)  # not implemented
    ]


def may_keep(file: pq.ParquetFile, tree: Filter | None) -> Callable[[int], bool]:
    """Return what says whether a row group may hold a row that the filter keeps, by its statistics."""
    if tree is None:
        return lambda _group: True
    paths = [file.schema.column(i).path for i in range(len(file.schema))]
    known = {part: _known(part, file, paths) for part in comparisons_of(tree)}

    def may_hold(group: int, part: Comparison | Members) -> bool:
        if (column := known[part]) is None:
            return True
        found = column.bounds(file.metadata.row_group(group).column(column.leaf).statistics)
        return found is None or all(_may_hold(*found, sign, value) for sign, value in column.compared)

    return lambda group: holds(tree, partial(may_hold, group))


class _Column(NamedTuple):
    """A column that a filter compares: its leaf, the type of its values, and comparisons that all kept rows hold."""

    leaf: int
    kind: pa.DataType
    compared: list[tuple[str, Any]]

    def bounds(self, statistics: pq.Statistics | None) -> tuple[Any, Any] | None:
        """Return the smallest and the largest value of a chunk as `literal` has them, None if they are not known.

        pyarrow gives no statistics that are of an order that the footer does not define, or of a writer that is known
        to be wrong.
        """
        if statistics is None or not statistics.has_min_max:
            return None
        if units_per_second(self.kind) is not None:
            if statistics.physical_type not in ("INT32", "INT64"):
                return None
            factor = _DAY_MILLISECONDS if pa.types.is_date64(self.kind) else 1  # stored as days
            return statistics.min_raw * factor, statistics.max_raw * factor
        if pa.types.is_float16(self.kind):
            return struct.unpack("<ee", statistics.min + statistics.max)
        low, high = statistics.min, statistics.max
        return (Fraction(low), Fraction(high)) if isinstance(low, Decimal) else (low, high)


def _known(part: Comparison | Members, file: pq.ParquetFile, paths: list[str]) -> _Column | None:
    """Return the column of a comparison, None if statistics never decide it."""
    if paths.count(part.column) != 1 or (isinstance(part, Members) and not part.is_in):
        return None
    kind = value_type(field_type(file.schema_arrow, part.column, "", "filter"))
    if isinstance(part, Members):
        values: list[Any] = [literal(value, kind) for value in part.values]
        compared = [(">=", min(values)), ("<=", max(values))]
    else:
        compared = [(part.operator, literal(part.value, kind))]
    return _Column(paths.index(part.column), kind, compared)


def _may_hold(low: Any, high: Any, operator: str, value: Any) -> bool:
    """Return whether a chunk with these bounds may hold a value that a comparison keeps; nulls are never kept.

    (Arrow's own pruning by expressions gives up on a chunk that holds a null.)
    """
    try:
        if not low <= high:  # NaN, or in another order than they should
            return True
        if operator == "!=":  # a NaN, which statistics leave out, differs from every value
            return isinstance(low, float) or not low == value == high
        if isinstance(low, str) and isinstance(value, str) and low != high:
            low, high, value = *_bounds_in_any_order(low.encode(), high.encode()), value.encode()
        if operator == "==":
            return bool(low <= value <= high)
        return bool(COMPARE[operator](low if operator[0] == "<" else high, value))
    except (TypeError, UnicodeDecodeError):  # bytes and text, for instance; a bound that is not UTF-8
        return True


def _bounds_in_any_order(low: bytes, high: bytes) -> tuple[bytes, bytes]:
    """Return wider bounds of UTF-8 that are right even if their writer compared bytes as signed numbers.

    Such a writer finds ["aé", "az", "b"] to be between "aé" and "b". What is right in either order is how the texts
    begin, up to and with the first byte in which the bounds differ. No byte of UTF-8 is as large as the one added to
    the upper bound.
    """
    unequal = (i + 1 for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b)
    end = next(unequal, len(low))
    return low[:end], high[:end] + b"\xff"
