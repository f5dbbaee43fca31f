"""Files of Megatron for tests, written from the description of the format; what is in batches of tokens."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tokenloom.tasks.sources import Rows

#: By the code of a type in an .idx.
TYPES: dict[int, Any] = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
Document = Sequence[Sequence[int]]  # of one sequence of ids, or several


def write_megatron(path: Path, documents: Sequence[Document], code: int = 8) -> Path:
    """Write PATH.bin and PATH.idx; return the path of the .bin.

    Args:
        path: without a suffix.
        documents: of sequences of ids.
        code: of the type of the ids.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    sequences = [np.array(ids, TYPES[code]) for document in documents for ids in document]
    lengths = [len(ids) for ids in sequences]
    offsets = np.cumsum([0, *(ids.nbytes for ids in sequences)])[:-1]
    firsts = np.cumsum([0, *map(len, documents)])
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(sequences), len(firsts))
    parts = [np.array(lengths, "<i4"), np.array(offsets, "<i8"), np.array(firsts, "<i8")]
    path.with_suffix(".idx").write_bytes(head + b"".join(part.tobytes() for part in parts))
    path.with_suffix(".bin").write_bytes(b"".join(ids.tobytes() for ids in sequences))
    return path.with_suffix(".bin")


def documents_in(batches: Sequence[Rows]) -> list[tuple[int, list[int]]]:
    """Return the row and the ids of each document."""
    return [
        (row, np.frombuffer(text, "<u4").tolist())
        for rows in batches
        for row, text in zip(rows.rows.tolist(), rows.texts.to_pylist(), strict=True)
    ]


def ids_in(batches: Sequence[Rows]) -> list[list[int]]:
    """Return the ids of each document."""
    return [ids for _, ids in documents_in(batches)]


def masks_in(batches: Sequence[Rows]) -> list[list[int]]:
    """Return the mask of each document, with a value for the end-of-text id."""
    return [list(mask) for rows in batches if rows.masks is not None for mask in rows.masks.to_pylist()]
