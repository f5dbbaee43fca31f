"""The values of a filter as the type of a column represents them, so that rows and statistics are compared alike.

A value is rounded to a column of floats, as numpy does: 0.9 finds a float32 that was written as 0.9, which as a double
is another number. With all other columns it is compared exactly.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from fractions import Fraction
from functools import lru_cache
from math import isfinite
from typing import Any

import numpy as np
import pyarrow as pa

from tokenloom.errors import message_of
from tokenloom.spec.row_filter import COMPARE, Comparison, Members, Scalar
from tokenloom.tasks.sources.rows.shown_names import json_type

_UNITS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_SECONDS_PER_DAY = 86_400
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Literal = str | float | Fraction


@lru_cache(maxsize=64, typed=True)  # each batch asks for it
def literal(value: Scalar, kind: pa.DataType) -> Literal:
    """Return what a column of a type is compared with; raises ValueError if a column of times can't be.

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
    """Return in what a column of times counts; None for a column of another type."""
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
    digits = re.search(r"[.,](\d+)", text)  # more of them than Python keeps
    fraction = Fraction(f"0.{digits[1]}") if digits else Fraction(0)
    return since.days * _SECONDS_PER_DAY + since.seconds + fraction


def compare(found: Any, comparison: Comparison | Members, *, parses_numbers: bool) -> bool:
    """Return whether a comparison is true of a value; raises ValueError if they can't be compared.

    Args:
        found: the value; null is never kept.
        comparison: with what to compare it, and how.
        parses_numbers: whether to compare a number with the number that a text spells.
    """
    wanted = comparison.values[0] if isinstance(comparison, Members) else comparison.value
    is_number = parses_numbers and isinstance(wanted, int | float) and isinstance(found, str)
    if found is None or (is_number and not found.strip()):
        return False
    try:
        if is_number:
            found = _parse_number(found)
        if _kind(found) is not _kind(wanted):
            raise ValueError(f"{json_type(found)} and {json_type(wanted)}")
    except ValueError as error:
        raise ValueError(
            f"{comparison.column!r} is {str(found)[:40]!r}, which the filter can't compare with {wanted!r} "
            f"({message_of(error)})"
        ) from error
    if isinstance(comparison, Members):
        return (found in comparison.value_set) == comparison.is_in
    return bool(COMPARE[comparison.operator](found, wanted))


def _parse_number(text: str) -> int | float:
    """Return the number in a text, an integer exactly; "true" is 1, and "false" is 0. Raises ValueError."""
    if (word := text.strip().lower()) in ("true", "false"):
        return word == "true"
    try:
        return int(text)
    except ValueError:
        return float(text)


def _kind(value: Any) -> type:
    """Return the type to compare as: float for integers and booleans too."""
    return float if isinstance(value, int | float) else type(value)
