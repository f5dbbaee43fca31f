"""The code points that Unicode 14 assigns: those that a fast encoder may get.

Unicode 14 is that of the oldest supported Python. What it assigns has the same normal form in all later versions
(https://www.unicode.org/policies/stability_policy.html). What it does not assign may get any class later, and each
library learns of that in another release. `unassigned.txt` lists those code points, which newer versions of Python
can't name, and the two planes for private use, which real text hardly uses: a probe then compares half as many.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from tokenloom.storage.stores.local_files import read_regular

_SURROGATES = range(0xD800, 0xE000)  # no text contains them


@cache
def left_to_reference() -> list[tuple[int, int]]:
    """Return ranges [first, last] of code points that no fast encoder gets, in order."""
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
