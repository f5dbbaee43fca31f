"""Which documents of two encodings of the same texts differ."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokenloom.tokenizers.base import Encoded


def differing(expected: Encoded, found: Encoded) -> NDArray[np.int64]:
    """Return the indices of the documents whose ids differ, in order."""
    if np.array_equal(expected.num_tokens, found.num_tokens) and np.array_equal(expected.tokens, found.tokens):
        return np.empty(0, np.int64)
    both = zip(_documents(expected), _documents(found), strict=True)
    return np.flatnonzero([not np.array_equal(one, other) for one, other in both])


def _documents(encoded: Encoded) -> list[NDArray[np.unsignedinteger]]:
    return np.split(encoded.tokens, np.cumsum(encoded.num_tokens, dtype=np.int64)[:-1])
