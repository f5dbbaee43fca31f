"""The marks of a partition's documents in work/: how many copies of each a version has, and the further copies.

A file beside each spill has a byte for each of its rows: 0 for a document that is dropped, else the number of copies.
It is read in ranges, so each block of 1,016 bytes ends with its checksum. The further copies are spills of their own.
Their name is a hash of that of the partition's spills and of all that decides the copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from tokenloom.errors import FormatError
from tokenloom.storage.formats.statistics import MarkCounts
from tokenloom.storage.stores.store import Store
from tokenloom.storage.work.records import (
    FOLDER,
    SpillCounts,
    find_work_records,
    partition_record_path,
    reading_work_file,
)

_ROWS, _BLOCK = 1016, 1024


@dataclass(frozen=True, slots=True)
class MarkedPartition:
    """The marks of a partition, by their name in work/: counts, the spills of further copies, and lengths of files."""

    name: str
    counts: MarkCounts
    spills: list[SpillCounts]
    files: dict[str, int]


def find_marked(store: Store, names: Sequence[str]) -> dict[str, MarkedPartition]:
    """Return the marks of partitions that are there with all of their files, by their names."""
    lengths = {f"{FOLDER}/{name}": num_bytes for name, num_bytes in store.lengths(FOLDER).items()}
    found = find_work_records(store, [partition_record_path(name) for name in names], MarkedPartition)
    return {record.name: record for record in found.values() if record.files.items() <= lengths.items()}


def copies_path(name: str, index: int) -> str:
    """Return the path of the numbers of copies beside spill `index` of a partition whose marks are called `name`."""
    return f"{FOLDER}/{name}.{index:03d}.copies"


def write_copies(store: Store, name: str, index: int, copies: NDArray[np.uint8]) -> dict[str, int]:
    """Write the number of copies of each row of a spill, (n,); return the path and length of the file."""
    rows = np.zeros((-(-len(copies) // _ROWS), _ROWS), np.uint8)
    rows.reshape(-1)[: len(copies)] = copies
    data = b"".join(block + xxhash.xxh3_64_digest(block) for block in map(bytes, rows))
    store.replace(copies_path(name, index), data, durable=False)
    return {copies_path(name, index): len(data)}


def read_copies(store: Store, name: str, index: int, start: int, end: int) -> NDArray[np.uint8]:
    """Return the numbers of copies of rows [start, end) of a spill; raises WorkError if they are missing or damaged."""
    if start == end:
        return np.empty(0, np.uint8)
    path, first, last = copies_path(name, index), start // _ROWS, (end - 1) // _ROWS + 1
    with reading_work_file(store, path):
        data = store.read_range(path, first * _BLOCK, last * _BLOCK)
        blocks = np.frombuffer(data, np.uint8).reshape(-1, _BLOCK)
        if any(xxhash.xxh3_64_digest(block[:_ROWS]) != block[_ROWS:] for block in map(bytes, blocks)):
            raise FormatError("its checksum does not match")
    return blocks[:, :_ROWS].reshape(-1)[start - first * _ROWS : end - first * _ROWS]
