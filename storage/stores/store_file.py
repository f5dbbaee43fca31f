"""A file of a store as a Python file, read in blocks of one request each, larger ones in announced ranges.

The last blocks are kept, so that seeking back a little, or alternating between two columns, requests nothing twice.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from tokenloom.storage.stores.store import Store, join_ranges

_LARGE_BYTES = 16 * 2**20  # of a block in an announced range
BLOCK_BYTES = 2**20  # elsewhere
_GAP_BYTES = 2**16  # between ranges that are read in one request
_NUM_KEPT = 4  # blocks


class StoreFile(io.RawIOBase):
    """A file of a store, open for reading; errors as the store's `read_range`.

    Args:
        store: the store that holds the file.
        path: the file's path in the store.
        block_bytes: to read at once outside of announced ranges.

    Raises FileNotFoundError, StoreError.
    """

    def __init__(self, store: Store, path: str, block_bytes: int = BLOCK_BYTES) -> None:
        num_bytes = store.num_bytes(path)
        if num_bytes is None:
            raise FileNotFoundError(store.place(path))
        self._store, self._path, self._num_bytes, self._block_bytes = store, path, num_bytes, block_bytes
        self._position = 0
        self._announced: list[tuple[int, int]] = []
        self._kept: list[tuple[int, bytes]] = []  # (start, bytes), the one used last at the end

    def announce(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Announce that these ranges [start, end) will be read, so that few large requests cover them."""
        self._announced = join_ranges(sorted(ranges), _GAP_BYTES, _LARGE_BYTES)

    def readinto(self, buffer: Any) -> int:
        """Read up to the end of a block into `buffer`; return the number of bytes."""
        view = memoryview(buffer).cast("B")
        if self._position >= self._num_bytes or not len(view):
            return 0
        start, block = self._block(self._position)
        piece = memoryview(block)[self._position - start :][: len(view)]
        view[: len(piece)] = piece
        self._position += len(piece)
        return len(piece)

    def read(self, num_bytes: int | None = -1) -> bytes:
        """Return that many bytes, fewer only at the end of the file."""
        if num_bytes is None or num_bytes < 0:
            num_bytes = self._num_bytes
        data = bytearray(max(0, min(num_bytes, self._num_bytes - self._position)))
        filled = 0
        while filled < len(data):
            filled += self.readinto(memoryview(data)[filled:])
        return bytes(data)

    def _block(self, position: int) -> tuple[int, bytes]:
        """Return the block that contains a position, and its start."""
        for kept in self._kept:
            if kept[0] <= position < kept[0] + len(kept[1]):
                self._kept.remove(kept)
                self._kept.append(kept)
                return kept
        start, end = next(
            (block for block in self._announced if block[0] <= position < block[1]),
            (position, min(position + self._block_bytes, self._num_bytes)),
        )
        block = start, self._store.read_range(self._path, start, end)
        self._kept = [*self._kept[-_NUM_KEPT + 1 :], block]
        return block

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position; return it."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._num_bytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def close(self) -> None:
        """Do nothing: nothing is open, and another reader may still use this shared file."""

    def size(self) -> int:
        """Return the length of the file in bytes."""
        return self._num_bytes

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True
