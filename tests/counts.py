"""The size of a test run: reduced counts, or full ones with TOKENLOOM_FULL=1; and the report at its end."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")
SUMMARY: list[str] = []  # lines that the test run shows at its end
FULL = os.environ.get("TOKENLOOM_FULL") == "1"
#: How the reason of each skip for lack of data begins; such skips are counted.
NEEDS_DATA = "needs data"

#: Mark a test, or a parameter of one, that repeats what another shows: one more kind, size or write pattern.
full_only = pytest.mark.skipif(not FULL, reason="part of the full run: set TOKENLOOM_FULL=1")


def data_folder(variable: str) -> Path | None:
    """Return the folder that an environment variable names; None if it is unset, or no folder."""
    folder = os.environ.get(variable)
    return Path(folder) if folder and Path(folder).is_dir() else None


def every(step: int, cases: Iterable[T]) -> list[T]:
    """Return the parameters of a test: all of them with TOKENLOOM_FULL=1, else each `step`-th."""
    return list(cases)[:: 1 if FULL else step]


def count(reduced: T, full: T) -> T:
    """Return how often a test repeats: `full` with TOKENLOOM_FULL=1, else `reduced`."""
    return full if FULL else reduced
