"""The types in which tokens are stored: little-endian uint8, uint16 and uint32."""

from __future__ import annotations

import numpy as np

from tokenloom.storage.formats.arrays import AnyDtype

#: by the bytes of a token
TOKEN_DTYPES: dict[int, AnyDtype] = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4")}


def token_dtype(vocab_size: int) -> AnyDtype:
    """Return the narrowest stored type for ids in [0, vocab_size); raises ValueError above 2**32."""
    for width, dtype in TOKEN_DTYPES.items():
        if 0 < vocab_size <= 2 ** (8 * width):
            return dtype
    raise ValueError(f"a vocabulary has 1 to 2**32 ids, not {vocab_size}")
