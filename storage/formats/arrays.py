"""Types of arrays; AnyArray is for items of varying type, as token ids are stored as uint8, uint16 or uint32."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

AnyArray = NDArray[Any]
AnyDtype = np.dtype[Any]
Int64s = NDArray[np.int64]
AnyBuffer = Any  # numpy's arrays are buffers to a type checker from Python 3.12 on
