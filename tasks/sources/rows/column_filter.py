"""Filters over columns: which rows of a record batch a filter keeps."""

from __future__ import annotations

from contextlib import suppress
from functools import reduce
from math import ceil, floor, isfinite

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokenloom.errors import InputError, message_of
from tokenloom.spec.row_filter import Comparison, Filter
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
    if not isinstance(tree, Comparison):
        return reduce(pc.and_kleene if tree.is_all else pc.or_kleene, (_mask(batch, part) for part in tree.parts))
    values = plain(pick(batch, tree.column))
    return pc.call_function(_KERNELS[tree.operator], [values, _scalar(tree, values.type)])


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
    compare an integer with a decimal(38, 2).
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
    return pa.scalar(value)
