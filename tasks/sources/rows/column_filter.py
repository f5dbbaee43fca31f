"""Filters over columns: which rows of a record batch a filter keeps."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from functools import lru_cache, reduce
from math import ceil, floor

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokenloom.errors import InputError, message_of
from tokenloom.spec.row_filter import COMPARE, Comparison, Filter, Junction, Members, Scalar
from tokenloom.tasks.sources.rows.column_names import field_type, pick, plain, value_type
from tokenloom.tasks.sources.rows.literals import literal, units_per_second

_KERNELS = {"==": "equal", "!=": "not_equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}


def kept_rows(batch: pa.RecordBatch, tree: Filter, url: str) -> NDArray[np.bool_]:
    """Return which rows of a batch the filter keeps, (n,); raises InputError if it can't compare a column."""
    try:
        mask = _mask(batch, tree)
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
            why = f", with {part.value if isinstance(part, Comparison) else part.values[0]!r}; check the value's type"
        raise InputError(f"{url}: the filter can't compare column {part.column!r}, which is {kind}{why}") from error


def _mask(batch: pa.RecordBatch, tree: Filter) -> pa.Array:
    if not isinstance(tree, Junction):
        return _part_mask(plain(pick(batch, tree.column)), tree)
    if not tree.parts:
        return pa.repeat(tree.is_all, len(batch))
    return reduce(pc.and_kleene if tree.is_all else pc.or_kleene, (_mask(batch, part) for part in tree.parts))


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
