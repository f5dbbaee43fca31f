"""The marks of a partition's documents in work/: how many copies of each a version has, and the further copies.

A file beside each spill has a byte for each of its rows: 0 for a document that is dropped, else the number of copies.
It is read in ranges, so each block of 1,016 bytes ends with its checksum, which depends on the name of the file and the
number of the block too: a block of another file is damage. The further copies are spills of their own. Their name is a
hash of that of the partition's spills and of all that decides the copies.
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
    """The marks of a partition, by their name in work/: counts, the spills of further copies, `lengths` of files."""

    name: str
    counts: MarkCounts
    spills: list[SpillCounts]
    lengths: dict[str, int]


def find_marked(store: Store, names: Sequence[str]) -> dict[str, MarkedPartition]:
    """Return the marks of partitions that are there with all of their files, by their names."""
    lengths = {f"{FOLDER}/{name}": num_bytes for name, num_bytes in store.lengths(FOLDER).items()}
    found = find_work_records(store, [partition_record_path(name) for name in names], MarkedPartition)
    return {record.name: record for record in found.values() if record.lengths.items() <= lengths.items()}


def copies_path(name: str, index: int) -> str:
    """Return the path of the numbers of copies beside spill `index` of a partition whose marks are called `name`."""
    return f"{FOLDER}/{name}.{index:03d}.copies"


def write_copies(store: Store, name: str, index: int, copies: NDArray[np.uint8]) -> dict[str, int]:
    """Write the number of copies of each row of a spill, (n,); return the path and length of the file."""
    rows = np.zeros((-(-len(copies) // _ROWS), _ROWS), np.uint8)
    rows.reshape(-1)[: len(copies)] = copies
    path = copies_path(name, index)
    data = b"".join(block + _checksum(path, number, block) for number, block in enumerate(map(bytes, rows)))
    store.replace(path, data, durable=False)
    return {path: len(data)}


def read_copies(store: Store, name: str, index: int, start: int, end: int) -> NDArray[np.uint8]:
    """Return the numbers of copies of rows [start, end) of a spill; raises WorkError if they are missing or damaged."""
    if start == end:
        return np.empty(0, np.uint8)
    path, first, last = copies_path(name, index), start // _ROWS, (end - 1) // _ROWS + 1
    for is_last in (store.is_local, True):  # a remote file that arrives damaged is read again
        with reading_work_file(store, path, is_last=is_last):
            data = store.read_range(path, first * _BLOCK, last * _BLOCK)
            blocks = np.frombuffer(data, np.uint8).reshape(-1, _BLOCK)
            for number, block in enumerate(map(bytes, blocks), first):
                if _checksum(path, number, block[:_ROWS]) != block[_ROWS:]:
                    raise FormatError("its checksum does not match")
            break
    return blocks[:, :_ROWS].reshape(-1)[start - first * _ROWS : end - first * _ROWS]


def _checksum(path: str, number: int, block: bytes) -> bytes:
    """Return the checksum of block `number` of the file at a path."""
    return xxhash.xxh3_64_digest(f"{path} {number} ".encode() + block)
