"""The code points that Unicode 14 assigns: those that a fast encoder may get.

Unicode 14 is the oldest one of a supported Python. What it assigns has the same class and the same normal form in all
later versions (https://www.unicode.org/policies/stability_policy.html); what it does not assign may get any class, and
gets it at another time in each library. `unassigned.txt` lists those, since Python 3.12 and later can't tell them, and
the planes for private use, of which real text uses a few icons: so a probe has half as many characters to compare.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from tokenloom.storage.stores.local_files import read_regular

_SURROGATES = range(0xD800, 0xE000)  # no text contains them


@cache
def left_to_reference() -> list[tuple[int, int]]:
    """Return ranges [first, last] of code points that no fast encoder gets, in order: a tenth of a percent of text."""
    lines = read_regular(Path(__file__).with_name("unassigned.txt")).decode().splitlines()
    return [(int(first, 16), int(last, 16)) for first, last in map(str.split, lines)]


@cache
def assigned() -> list[int]:
    """Return all other code points, in order."""
    is_assigned = np.ones(0x110000, bool)
    is_assigned[_SURROGATES] = False
    for first, last in left_to_reference():
        is_assigned[first : last + 1] = False
    return [int(code) for code in np.flatnonzero(is_assigned)]
