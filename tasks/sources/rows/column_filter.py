"""Filters over columns: which rows of a record batch a filter keeps."""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal
from functools import lru_cache, reduce
from math import ceil, floor, isfinite

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokenloom.errors import InputError, message_of
from tokenloom.spec.row_filter import Comparison, Filter, Members
from tokenloom.tasks.sources.rows.column_names import field_type, pick, plain, value_type

_KERNELS = {"==": "equal", "!=": "not_equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}
_COMPARE_ERRORS = (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError)


def kept_rows(batch: pa.RecordBatch, tree: Filter, url: str) -> NDArray[np.bool_]:
    """Return which rows of a batch the filter keeps, (n,); raises InputError if it can't compare a column."""
    try:
        mask = _mask(batch, tree)
    except _COMPARE_ERRORS as error:
        reason = message_of(error)
        raise InputError(f"{url}: the filter can't compare a column: {reason}; check its value's type") from error
    kept: NDArray[np.bool_] = pc.fill_null(mask, False).to_numpy(zero_copy_only=False)
    return kept


def _mask(batch: pa.RecordBatch, tree: Filter) -> pa.Array:
    if isinstance(tree, Members):
        return _member_mask(batch, tree)
    if not isinstance(tree, Comparison):
        if not tree.parts:
            return pa.repeat(tree.is_all, len(batch))
        return reduce(pc.and_kleene if tree.is_all else pc.or_kleene, (_mask(batch, part) for part in tree.parts))
    values = plain(pick(batch, tree.column))
    return pc.call_function(_KERNELS[tree.operator], [values, _scalar(tree, values.type)])


def _member_mask(batch: pa.RecordBatch, members: Members) -> pa.Array:
    """Return which rows hold one of many values, or none of them; null for null."""
    values = plain(pick(batch, members.column))
    if pa.types.is_floating(values.type):
        values = values.cast(pa.float64())
    wanted = _value_set(members, values.type)
    if wanted is None:
        return _mask(batch, members.comparisons())
    found = pc.is_in(values, wanted)
    return pc.if_else(values.is_valid(), found if members.is_in else pc.invert(found), None)


@lru_cache(maxsize=8)
def _value_set(members: Members, kind: pa.DataType) -> pa.Array | None:
    """Return the values that a column of type `kind` can equal; None if Arrow compares that type only one by one."""
    types, is_text = pa.types, isinstance(members.values[0], str)
    if is_text and (types.is_string(kind) or types.is_large_string(kind)):
        return pa.array(members.values, kind)
    if is_text and (types.is_binary(kind) or types.is_large_binary(kind)):
        return pa.array([str(value).encode() for value in members.values], kind)
    if isinstance(members.values[0], str | bool) or not (types.is_integer(kind) or types.is_floating(kind)):
        return None
    scalars = [_scalar(Comparison(members.column, "==", value), kind) for value in members.values]
    found = [scalar.as_py() for scalar in scalars if scalar.type == kind]  # an integer equals no other one
    zeros = [0.0, -0.0] if types.is_floating(kind) and 0 in members.value_set else []  # equal, but not to is_in
    return pa.array([*found, *zeros], kind)


def check_comparable(schema: pa.Schema, comparison: Comparison, url: str) -> None:
    """Raise InputError if Arrow can't compare the column with the value."""
    kind = value_type(field_type(schema, comparison.column, url, "filter"))
    try:
        empty = plain(pa.array([], kind))
        pc.call_function(_KERNELS[comparison.operator], [empty, _scalar(comparison, empty.type)])
    except _COMPARE_ERRORS as error:
        raise InputError(
            f"{url}: the filter can't compare column {comparison.column!r}, which is {kind}, with "
            f"{comparison.value!r}; check the value's type"
        ) from error


def _scalar(comparison: Comparison, kind: pa.DataType) -> pa.Scalar:
    """Return the value to compare a column of type `kind` with.

    An integer has the column's own type if that type can hold it: Arrow would compare a uint64 as an int64, and can't
    compare an integer with a decimal(38, 2). Another one is a decimal, which Arrow compares exactly with any integer.
    """
    value = comparison.value
    if isinstance(value, int | float) and not isinstance(value, bool) and pa.types.is_floating(kind):
        return pa.scalar(float(value))  # otherwise Arrow casts the column to integers
    is_order = comparison.operator not in ("==", "!=")  # 0.5 lies between two integers, and so bounds them
    if (
        isinstance(value, float)
        and pa.types.is_integer(kind)
        and (value.is_integer() or (is_order and isfinite(value)))
    ):
        value = ceil(value) if comparison.operator in ("<", ">=") else floor(value)
    if type(value) is int and (pa.types.is_integer(kind) or pa.types.is_decimal(kind)):
        with suppress(pa.ArrowInvalid, OverflowError):
            return pa.scalar(value, kind)
        return pa.scalar(Decimal(max(-(2**64), min(value, 2**64))))  # 1e300 is as far outside as 2**64
    return pa.scalar(value, pa.uint64() if type(value) is int and value >= 2**63 else None)
