"""Checks of arguments; a message names the argument, the rule and the value."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import SupportsIndex


def checked_int(name: str, value: SupportsIndex, minimum: int = 0, end: int = 2**63) -> int:
    """Return an integer of Python, numpy or torch as an int.

    Raises:
        TypeError: the value is not an integer.
        ValueError: the value is not in [minimum, end).
    """
    try:
        number = operator.index(value)
    except TypeError as error:
        raise TypeError(f"{name} must be an integer, not {value!r}") from error
    if number < minimum:
        raise ValueError(f"{name} must be at least {minimum}, not {value}")
    if number >= end:
        raise ValueError(f"{name} must be below {end:,}, not {value}")
    return number


def checked_choice(name: str, value: str, choices: Sequence[str]) -> str:
    """Return `value`; raise ValueError if it is not one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
    return str(value)
