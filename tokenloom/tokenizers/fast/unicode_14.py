"""The code points that Unicode 14 assigns: those that a fast encoder may get.

Unicode 14 is the oldest one of a supported Python. What it assigns has the same class and the same normal form in all
later versions (https://www.unicode.org/policies/stability_policy.html); what it does not assign may get any class, and
gets it at another time in each library. `unassigned.txt` lists those, since Python 3.12 and later can't tell them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

from tokenloom.storage.stores.local_files import read_regular

_PRIVATE = (0xF0000, 0x10FFFF)  # planes for private use, of which real text uses a few icons
_SURROGATES = (0xD800, 0xDFFF)  # no text contains them
_NUM_CODE_POINTS = 0x110000


@cache
def left_to_reference() -> list[tuple[int, int]]:
    """Return ranges [first, last] of code points that no fast encoder gets, in order: a tenth of a percent of text.

    Those of private planes are among them so that a probe has half as many characters to compare.
    """
    lines = read_regular(Path(__file__).with_name("unassigned.txt")).decode().splitlines()
    ranges = [(int(first, 16), int(last, 16)) for first, last in map(str.split, lines)]
    return [each for each in ranges if each[0] < _PRIVATE[0]] + [_PRIVATE]


@cache
def assigned() -> list[int]:
    """Return all other code points, in order."""
    return [code for start, end in _gaps(sorted([*left_to_reference(), _SURROGATES])) for code in range(start, end)]


def _gaps(ranges: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield what lies between ranges [first, last], as [start, end)."""
    bounds = [(-1, -1), *ranges, (_NUM_CODE_POINTS, _NUM_CODE_POINTS)]
    yield from ((before[1] + 1, after[0]) for before, after in pairwise(bounds))
