"""The writer of the file `.mask` beside a shard: the class of each of its tokens, one byte each, and nothing else.

docs/reference/format.md describes the bytes, classes.py what they mean. Its checksums are computed while it is written.
"""

from __future__ import annotations

import hashlib
from itertools import pairwise
from typing import IO

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from tokenloom.storage.formats.arrays import UInt64s
from tokenloom.storage.formats.blocks import BlockHasher, ShardBlocks
from tokenloom.storage.stores import local_files


class MaskWriter:
    """Writes the mask of one shard into an open file, piece by piece.

    Args:
        file: a new file open for writing (`Store.writing`).
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._sha256, self._hasher = hashlib.sha256(), BlockHasher()
        self._counts = np.zeros(256, np.int64)

    def append(self, classes: NDArray[np.uint8], num_tokens: NDArray[np.uint32]) -> UInt64s:
        """Add the classes of whole documents; return the hash of those of each, for the document table.

        Args:
            classes: (sum(num_tokens),).
            num_tokens: (n,) tokens of each document.
        """
        view = np.ascontiguousarray(classes).data
        local_files.write_all(self._file, view)
        self._sha256.update(view)
        self._hasher.update(view)
        self._counts += np.bincount(classes, minlength=256)
        ends = np.cumsum(num_tokens, dtype=np.int64).tolist()
        return np.array([xxh3_64_intdigest(view[start:end]) for start, end in pairwise([0, *ends])], np.uint64)

    def finish(self) -> ShardBlocks:
        """Return the checksums of the file, after the last token."""
        self._file.flush()
        num_bytes = int(self._counts.sum())
        return ShardBlocks(self._sha256.hexdigest(), num_bytes, self._hasher.block_bytes, b"", self._hasher.finish())

    def counts(self) -> dict[str, int]:
        """Return how many tokens have each class, by its number; classes that no token has are left out."""
        return {str(number): int(self._counts[number]) for number in np.flatnonzero(self._counts).tolist()}
