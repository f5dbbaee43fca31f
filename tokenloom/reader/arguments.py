"""Checks of arguments: what is wrong is named, with the rule."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any


def whole(name: str, value: Any, least: int = 0, end: int = 2**63) -> int:
    """Return a whole number, also of numpy or torch, as int.

    Raises:
        TypeError: it is none.
        ValueError: it lies outside of [least, end).
    """
    try:
        number = operator.index(value)
    except TypeError as error:
        raise TypeError(f"{name} must be a whole number, not {value!r}") from error
    if number < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")
    if number >= end:
        raise ValueError(f"{name} must be below {end:,}, not {value}")
    return number


def choice(name: str, value: Any, choices: Sequence[str]) -> str:
    """Return `value` if it is one of `choices`; raises ValueError."""
    if value not in choices:
        raise ValueError(f"{name}: one of {', '.join(choices)}, not {value!r}")
    return str(value)
