"""Types of arrays, the types in which tokens are stored, runs of neighbouring items, and ranges.

AnyArray is for items of varying type, as token ids are stored as uint8, uint16 or uint32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

AnyArray = NDArray[Any]
AnyDtype = np.dtype[Any]
UInt8s = NDArray[np.uint8]
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
UInt64s = NDArray[np.uint64]
TokenDtype = np.dtype[np.uint8 | np.uint16 | np.uint32]  # the narrowest that holds every id of a vocabulary
Tokens = NDArray[np.uint8 | np.uint16 | np.uint32]
AnyBuffer = Any  # numpy's arrays are buffers to a type checker from Python 3.12 on
#: The types of stored tokens, all little-endian, by the bytes of a token.
TOKEN_DTYPES: dict[int, AnyDtype] = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4")}


def token_dtype(vocab_size: int) -> AnyDtype:
    """Return the narrowest stored type for ids in [0, vocab_size); raises ValueError above 2**32."""
    for width, dtype in TOKEN_DTYPES.items():
        if 0 < vocab_size <= 2 ** (8 * width):
            return dtype
    raise ValueError(f"a vocabulary has 1 to 2**32 ids, not {vocab_size}")


def runs_of(offsets: Int64s, max_size: int) -> list[tuple[int, int]]:
    """Return n neighbouring items grouped into runs [start, end) of at most `max_size`; a larger item is a run alone.

    Example: runs_of([0, 2, 4, 9, 10], 4) -> [(0, 2), (2, 3), (3, 4)]

    Args:
        offsets: (n + 1,), where each item starts and, last, where the last one ends.
        max_size: the maximum size of a run of several items.
    """
    runs, start, count = [], 0, len(offsets) - 1
    while start < count:
        end = max(start + 1, int(np.searchsorted(offsets, offsets[start] + max_size, side="right")) - 1)
        runs.append((start, end))
        start = end
    return runs


def ranges_of(counts: Int64s) -> Int64s:
    """Return 0 to count - 1 for each of (n,) counts, (sum(counts),): [2, 0, 3] -> [0, 1, 0, 1, 2]."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def ranges(starts: Int64s, lengths: Int64s) -> Int64s:
    """Concatenate the integers of n ranges [start, start + length).

    Example: [5, 9], [2, 3] -> [5, 6, 9, 10, 11]
    """
    ends = np.cumsum(lengths)
    shifts: Int64s = np.repeat(starts - (ends - lengths), lengths)
    return np.arange(len(shifts), dtype=np.int64) + shifts


def offsets_of(lengths: Int64s) -> Int64s:
    """Add up (n,) lengths of parts to their (n + 1,) offsets: [2, 3] -> [0, 2, 5]."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)])
