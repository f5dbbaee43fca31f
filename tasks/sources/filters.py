"""Filters over columns: which rows of a record batch a filter keeps.

A value of the filter takes the type of its column, so that rows and statistics are compared alike. It is rounded to a
column of floats, as numpy does: 0.9 finds a float32 that was written as 0.9, which as a double is another number. With
all other columns it is compared exactly.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache, reduce
from math import ceil, floor, isfinite
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tokenloom.errors import InputError, message_of
from tokenloom.spec.syntax import COMPARE, Comparison, Filter, Junction, Members, Scalar
from tokenloom.tasks.sources.base import BadValue
from tokenloom.tasks.sources.values import field_type, json_type, pick, plain, value_type

_KERNELS = {"==": "equal", "!=": "not_equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}
_UNITS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_SECONDS_PER_DAY = 86_400
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Literal = str | float | Fraction


def kept_rows(rows: pa.RecordBatch, tree: Filter) -> NDArray[np.bool_]:
    """Return which of n rows the filter keeps, (n,).

    Args:
        rows: the columns of the filter, which `check_comparable` has checked.
        tree: the filter.
    """
    mask = _mask(tree, len(rows), lambda part: _part_mask(plain(pick(rows, part.column)), part))
    kept: NDArray[np.bool_] = pc.fill_null(mask, False).to_numpy(zero_copy_only=False)
    return kept


def check_comparable(schema: pa.Schema, part: Comparison | Members, url: str) -> None:
    """Raise InputError if the column can't be compared with the value, or with each of many."""
    kind = value_type(field_type(schema, part.column, url, "filter"))
    try:
        _part_mask(plain(pa.array([], kind)), part)
    except (pa.ArrowException, ValueError) as error:
        reason = f"which is {kind}, with {_first_value(part)!r}: {message_of(error)}; check the value's type"
        raise InputError(f"{url}: the filter can't compare column {part.column!r}, {reason}") from error


def _mask(tree: Filter, num_rows: int, mask_of: Callable[[Comparison | Members], pa.Array]) -> pa.Array:
    if not isinstance(tree, Junction):
        return mask_of(tree)
    if not tree.parts:
        return pa.repeat(tree.is_all, num_rows)
    masks = (_mask(part, num_rows, mask_of) for part in tree.parts)
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
    wanted = literal(value, values.type)
    values = _numbers(values)
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
    types = pa.types
    stored = _numbers(pa.array([], kind)).type
    if types.is_decimal(stored):
        return None
    wanted = [literal(value, kind) for value in members.values]
    if isinstance(wanted[0], str):
        return pa.array(wanted, kind)
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


def is_true(found: Any, part: Comparison | Members, *, parses_numbers: bool) -> bool:
    """Return whether a comparison is true of a single value, of JSON for instance; raises BadValue if it can't be.

    Args:
        found: the value.
        part: of the filter.
        parses_numbers: whether a text that spells a number is that number; true and false are 1 and 0, blank is null.
    """
    wanted = _first_value(part)
    if parses_numbers and isinstance(found, str) and not isinstance(wanted, str):
        found = number_of(found)
    if found is None:
        return False
    if not isinstance(found, str if isinstance(wanted, str) else int | float):
        problem = f"{part.column!r} is {str(found)[:40]!r}, which the filter can't compare with {wanted!r}"
        reason = f"{json_type(found)} and {json_type(wanted)}"
        raise BadValue(f"{problem} ({reason}); repair the row or check the filter", "bad_filter")
    if isinstance(part, Members):
        return (found in part.value_set) == part.is_in
    # rounded to a float, as with columns; integers are compared exactly
    return bool(COMPARE[part.operator](found, float(wanted) if isinstance(found, float) else wanted))


def _first_value(part: Comparison | Members) -> Scalar:
    return part.values[0] if isinstance(part, Members) else part.value


def number_of(text: str) -> str | float | None:
    """Return the number that a text spells, None for a blank one; the text itself if it spells none."""
    word = text.strip().lower()
    if word in ("", "true", "false"):
        return word == "true" if word else None
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _bounds(low: Any, high: Any) -> tuple[Any, Any]:
    """Return bounds of a row group; those of texts so wide that they hold if their writer compared bytes as signed.

    Such a writer finds ["aé", "az", "b"] to be between "aé" and "b". In either order, texts begin as the bounds do, up
    to and with the first byte in which these differ. No byte of UTF-8 is as large as the one added to the upper bound.
    """
    if not isinstance(low, str):
        return low, high
    first = low.encode()
    last = high.encode()
    differs = next((i + 1 for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return (first, last) if first == last else (first[:differs], last[:differs] + b"\xff")


def may_keep(file: pq.ParquetFile, groups: range, tree: Filter) -> NDArray[np.bool_]:
    """Return which row groups may hold a row that the filter keeps, (n,), by the smallest and largest of their values.

    `!=` and a list of many values rule out nothing. pyarrow gives no bounds that are of an order that the footer does
    not define, or of a writer that is known to be wrong. (Its own pruning gives up on a row group that holds a null.)
    """
    paths = [file.schema.column(i).path for i in range(len(file.schema))]

    def may_hold(part: Comparison | Members) -> pa.Array:
        kind = field_type(file.schema_arrow, part.column, "", "filter")
        unknown = pa.nulls(len(groups), pa.bool_())
        if isinstance(part, Members) or part.operator == "!=" or paths.count(part.column) != 1:
            return unknown
        leaf = paths.index(part.column)
        found = [file.metadata.row_group(group).column(leaf).statistics for group in groups]
        try:
            pairs = [_bounds(one.min, one.max) if one and one.has_min_max else (None, None) for one in found]
            is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
            low, high = (plain(pa.array(each, pa.binary() if is_text else kind)) for each in zip(*pairs, strict=True))
        except (ValueError, TypeError, OverflowError):  # a type without an order; a bound that is not UTF-8
            return unknown
        if part.operator == "==":
            holds = pc.and_(_compared(low, "<=", part.value), _compared(high, ">=", part.value))
        else:
            holds = _compared(low if part.operator[0] == "<" else high, part.operator, part.value)
        return pc.if_else(
            pc.less_equal(_numbers(low), _numbers(high)), holds, None
        )  # bounds may be NaN, or contradict themselves

    mask = pc.fill_null(_mask(tree, len(groups), may_hold), True)
    may_keep_group: NDArray[np.bool_] = mask.to_numpy(zero_copy_only=False)
    return may_keep_group
