"""Segments of an array, such as the documents among the tokens of a spill, copied as blocks by Arrow.

A gather of single values takes 7 to 16 times as long (docs/project/decisions.md).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tokenloom.storage.formats.arrays import AnyArray, AnyDtype


def as_segments(values: AnyArray, lengths: AnyArray) -> pa.LargeBinaryArray:
    """Return each segment as one binary value, without a copy.

    Args:
        values: (sum of lengths,), all segments, one after the other; contiguous, or else it is copied.
        lengths: (n,) values in each segment.
    """
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]) * values.dtype.itemsize
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers)


def take_segments(segments: pa.LargeBinaryArray, order: AnyArray, dtype: AnyDtype) -> AnyArray:
    """Return the values of the segments in `order`, joined.

    Take a few MiB at a time: the allocator reuses their memory. Touching fresh memory takes as long as the copy.

    Args:
        segments: from as_segments.
        order: (m,) which segments, in [0, n).
        dtype: of the values.
    """
    taken = segments.take(pa.array(order))
    _, offset_buffer, data = taken.buffers()
    ends = np.frombuffer(offset_buffer, np.int64)[taken.offset : taken.offset + len(taken) + 1]
    if data is None or ends[-1] == ends[0]:
        return np.empty(0, dtype)
    return np.frombuffer(data, np.uint8)[ends[0] : ends[-1]].view(dtype)
