"""Filters over columns: which rows of a record batch a filter keeps.

A value of the filter takes the type of its column, so that rows and statistics are compared alike. It is rounded to a
column of floats, as numpy does: 0.9 finds a float32 that was written as 0.9, which as a double is another number. With
all other columns it is compared exactly.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache, partial, reduce
from math import ceil, floor, isfinite
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tokenloom.errors import InputError, message_of
from tokenloom.spec.syntax import COMPARE, Comparison, Filter, Junction, Members, Scalar, comparisons_of, holds
from tokenloom.tasks.sources.base import BadValue
from tokenloom.tasks.sources.values import field_type, json_type, pick, plain, value_type

_KERNELS = {"==": "equal", "!=": "not_equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}
_UNITS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_SECONDS_PER_DAY = 86_400
_DAY_MILLISECONDS = 86_400_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Literal = str | float | Fraction


def kept_rows(rows: pa.RecordBatch, tree: Filter, url: str) -> NDArray[np.bool_]:
    """Return which of n rows the filter keeps, (n,); raises InputError if it can't compare a column.

    Args:
        rows: the columns of the filter.
        tree: the filter.
        url: for messages.
    """
    try:
        mask = _mask(rows, tree)
    except (pa.ArrowException, ValueError) as error:
        reason = message_of(error)
        raise InputError(f"{url}: the filter can't compare a column: {reason}; check its value's type") from error
    kept: NDArray[np.bool_] = pc.fill_null(mask, False).to_numpy(zero_copy_only=False)
    return kept


def check_comparable(schema: pa.Schema, part: Comparison | Members, url: str) -> None:
    """Raise InputError if the column can't be compared with the value, or with each of many."""
    kind = value_type(field_type(schema, part.column, url, "filter"))
    try:
        _part_mask(plain(pa.array([], kind)), part)
    except (pa.ArrowException, ValueError) as error:
        why = f": {message_of(error)}"
        if isinstance(error, pa.ArrowException):
            why = f", with {_first_value(part)!r}; check the value's type"
        raise InputError(f"{url}: the filter can't compare column {part.column!r}, which is {kind}{why}") from error


def _mask(rows: pa.RecordBatch, tree: Filter) -> pa.Array:
    if not isinstance(tree, Junction):
        return _part_mask(plain(pick(rows, tree.column)), tree)
    if not tree.parts:
        return pa.repeat(tree.is_all, len(rows))
    masks = (_mask(rows, part) for part in tree.parts)
    return reduce(pc.and_kleene if tree.is_all else pc.or_kleene, masks)


def _part_mask(values: pa.Array, part: Comparison | Members) -> pa.Array:
    """Return of which values a comparison is true, or which are among many; null for null."""
    if isinstance(part, Comparison):
        return _compared(values, part.operator, part.value)
    if (wanted := _value_set(part, values.type)) is None:
        found = [_compared(values, "==" if part.is_in else "!=", value) for value in part.values]
        return reduce(pc.or_kleene if part.is_in else pc.and_kleene, found)
    found = pc.is_in(_numbers(values), wanted)
    return pc.if_else(values.is_valid(), found if part.is_in else pc.invert(found), None)


def _compared(values: pa.Array, operator: str, value: Scalar) -> pa.Array:
    """Return of which values a comparison is true, (n,); null for null."""
    wanted, values = literal(value, values.type), _numbers(values)
    if isinstance(wanted, str) or not (pa.types.is_integer(values.type) or pa.types.is_decimal(values.type)):
        scalar = pa.scalar(wanted if isinstance(wanted, str) else float(wanted))
    elif (found := _stored(wanted, operator, values.type)) is None:  # each value compares with it as zero does
        return pc.if_else(values.is_valid(), COMPARE[operator](0, wanted), None)
    else:
        scalar = found
    return pc.call_function(_KERNELS[operator], [values, scalar])


def _stored(wanted: float | Fraction, operator: str, kind: pa.DataType) -> pa.Scalar | None:
    """Return the number to compare integers or decimals with, None if no value of their type has its place.

    A number between two values of the type, such as 0.5, becomes the one that leaves the same rows.
    """
    scale = kind.scale if pa.types.is_decimal(kind) else 0
    if not isinstance(wanted, Fraction):  # infinite
        return None
    units = wanted * Fraction(10) ** scale
    if units.denominator != 1 and operator in ("==", "!="):
        return None
    whole = ceil(units) if operator in ("<", ">=") else floor(units)
    try:
        return pa.scalar(Decimal(f"{whole}E{-scale}") if pa.types.is_decimal(kind) else whole, kind)
    except (pa.ArrowInvalid, OverflowError):  # outside the type
        return None


def _numbers(values: pa.Array) -> pa.Array:
    """Return times and booleans as integers, floats as doubles, and other values as they are."""
    if pa.types.is_floating(values.type):
        return values.cast(pa.float64())
    if pa.types.is_boolean(values.type):
        return values.cast(pa.uint8())
    if units_per_second(values.type) is None:
        return values
    return values.cast(pa.int32() if pa.types.is_date32(values.type) else pa.int64())


@lru_cache(maxsize=8)
def _value_set(members: Members, kind: pa.DataType) -> pa.Array | None:
    """Return the values that a column of type `kind` can equal; None if Arrow compares that type only one by one."""
    types, stored = pa.types, _numbers(pa.array([], kind)).type
    if types.is_decimal(stored):
        return None
    wanted = [literal(value, kind) for value in members.values]
    if isinstance(wanted[0], str):
        if types.is_string(kind) or types.is_large_string(kind):
            return pa.array(wanted, kind)
        is_binary = types.is_binary(kind) or types.is_large_binary(kind)
        return pa.array([str(value).encode() for value in wanted], kind) if is_binary else None
    if types.is_integer(stored):
        scalars = (_stored(value, "==", stored) for value in wanted if not isinstance(value, str))
        return pa.array([scalar.as_py() for scalar in scalars if scalar is not None], stored)
    if types.is_floating(stored):
        zeros = [0.0, -0.0] if 0 in wanted else []  # equal, but not to is_in
        return pa.array([*map(float, wanted), *zeros], stored)
    return None


@lru_cache(maxsize=64, typed=True)  # each batch asks for it
def literal(value: Scalar, kind: pa.DataType) -> Literal:
    """Convert a value of the filter to the type of its column; raises ValueError for a text that is not a time.

    Args:
        value: as the filter has it; True is 1, and False is 0.
        kind: of the column's values. For one of times, the result counts its units since 1970 in UTC.
    """
    if (units := units_per_second(kind)) is not None:
        return _seconds(value) * units
    if isinstance(value, str):
        return value
    if not isfinite(value):
        return float(value)
    if pa.types.is_floating(kind):
        with np.errstate(over="ignore"):
            rounded = float(kind.to_pandas_dtype()(value))
        return rounded if isfinite(rounded) else float(value)  # 1e300 is larger than any finite float32
    is_short = isinstance(value, float) and pa.types.is_decimal(kind)
    return Fraction(repr(value)) if is_short else Fraction(value)


def units_per_second(kind: pa.DataType) -> Fraction | None:
    """Return how many units of a column of times make a second; None for a column of another type."""
    if pa.types.is_timestamp(kind):
        return Fraction(_UNITS_PER_SECOND[kind.unit])
    if pa.types.is_date64(kind):
        return Fraction(_UNITS_PER_SECOND["ms"])
    return Fraction(1, _SECONDS_PER_DAY) if pa.types.is_date32(kind) else None


def _seconds(value: Scalar) -> Fraction:
    """Return the seconds from 1970 to a date or time in the form of ISO 8601; without a zone it is in UTC."""
    text = value if isinstance(value, str) else ""
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(
            f'{value!r} is not a date or time of ISO 8601; correct it, as in "2024-01-31" or "2024-01-31T12:00:00Z"'
        ) from error
    since = (time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH
    digits = re.search(r"[.,](\d+)", text)  # Python keeps only six
    fraction = Fraction(f"0.{digits[1]}") if digits else Fraction(0)
    return since.days * _SECONDS_PER_DAY + since.seconds + fraction


def is_true(found: Any, comparison: Comparison | Members, *, parses_numbers: bool) -> bool:
    """Return whether a comparison is true of a single value, of JSON for instance; raises BadValue if it can't be.

    Args:
        found: the value.
        comparison: of the filter.
        parses_numbers: whether a text that spells a number is that number; true and false are 1 and 0, blank is null.
    """
    value = _comparable(found, comparison, parses_numbers=parses_numbers)
    if value is None:
        return False
    if isinstance(comparison, Members):
        return (value in comparison.value_set) == comparison.is_in
    wanted = comparison.value  # rounded to a float, as with columns; integers are compared exactly
    return bool(COMPARE[comparison.operator](value, float(wanted) if isinstance(value, float) else wanted))


def _comparable(found: Any, comparison: Comparison | Members, *, parses_numbers: bool) -> str | float | None:
    wanted = _first_value(comparison)
    kinds = (str,) if isinstance(wanted, str) else (int, float)
    if found is None or isinstance(found, kinds):
        return found
    reason = f"{json_type(found)} and {json_type(wanted)}"
    if parses_numbers and isinstance(found, str):
        try:
            return _parse_number(found)
        except ValueError as error:
            reason = message_of(error)
    problem = f"{comparison.column!r} is {str(found)[:40]!r}, which the filter can't compare with {wanted!r} ({reason})"
    raise BadValue(f"{problem}; repair the row or check the filter", "bad_filter")


def _first_value(comparison: Comparison | Members) -> Scalar:
    return comparison.values[0] if isinstance(comparison, Members) else comparison.value


def _parse_number(text: str) -> float | None:
    word = text.strip().lower()
    if word in ("", "true", "false"):
        return None if not word else word == "true"
    try:
        return int(text)
    except ValueError:
        return float(text)


def may_keep(file: pq.ParquetFile, tree: Filter) -> Callable[[int], bool]:
    """Return a function that decides whether a row group may hold a row that the filter keeps, by its statistics."""
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
