"""The types of arrays that several modules of the reader share; comments beside the arrays give their shapes."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Int32s: TypeAlias = NDArray[np.int32]
#: the stored type of a token: the narrowest that holds every id of the vocabulary
TokenType: TypeAlias = np.dtype[np.uint8 | np.uint16 | np.uint32]
Tokens: TypeAlias = NDArray[np.uint8 | np.uint16 | np.uint32]
#: token ids from a caller, of any integer type
Integers: TypeAlias = NDArray[np.int8 | np.int16 | np.int32 | np.int64 | np.uint8 | np.uint16 | np.uint32 | np.uint64]
