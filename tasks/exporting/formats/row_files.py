"""Files of rows behind a table of their places, which MDS and LitData have in common.

u32 number of rows, u32 place of each row and of the end, a text of the format, the rows. So a file is below 4 GiB.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokenloom.errors import SpecError
from tokenloom.storage.formats.arrays import AnyArray, AnyBuffer
from tokenloom.tasks.exporting.documents import Documents
from tokenloom.tasks.exporting.formats.base import VersionFacts
from tokenloom.wording import counted

PART_BYTES = 2**26  # of ids; the files that both make by default
_MAX_BYTES = 2**32 - 1


def row_lengths(documents: Documents, facts: VersionFacts) -> NDArray[np.int64]:
    """Return the tokens of each row of a file."""
    length = facts.options.seq_len
    if length is None:
        return np.concatenate(list(documents.lengths())).astype(np.int64)
    return np.full(documents.num_tokens // length, length, np.int64)


def header(row_bytes: NDArray[np.int64], name: str, text: bytes = b"") -> bytes:
    """Return what is before the rows; raise SpecError if a document makes the file too long."""
    places = 4 * (len(row_bytes) + 2) + len(text) + np.append(0, np.cumsum(row_bytes))
    if places[-1] > _MAX_BYTES:
        raise SpecError(f"{name}: {counted(len(row_bytes), 'document')} make a file of 4 GiB or more; use megatron")
    return np.uint32(len(row_bytes)).tobytes() + places.astype("<u4").tobytes() + text


def joined(lengths: NDArray[np.uint32], parts: Sequence[AnyArray]) -> AnyBuffer:
    """Return the rows of a piece, each its share of every part in turn.

    Args:
        lengths: the tokens of each row, (num_rows,).
        parts: columns, (num_tokens,), and what is before them in each row, (num_rows, n).
    """
    if len(parts) == 1:
        return parts[0]
    items = []
    for part in parts:
        ends = np.append(0, np.cumsum(lengths, dtype=np.int64)) if part.ndim == 1 else np.arange(len(part) + 1)
        buffers = [None, pa.py_buffer(ends * part[:1].nbytes), pa.py_buffer(part)]
        items.append(pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(lengths), buffers))
    return memoryview(pc.binary_join_element_wise(*items, pa.scalar(b"", pa.large_binary())).buffers()[2])
