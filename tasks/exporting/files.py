"""The files of an export, hashed while they are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import IO

import xxhash

from tokenloom.storage.formats.arrays import AnyBuffer
from tokenloom.storage.stores import local_files
from tokenloom.storage.stores.store import Store

_SYNC_BYTES = 32 * 2**20  # written between two calls of the function that starts to sync them


@dataclass(frozen=True, slots=True)
class FileRecord:
    """The length and the xxh3_128 of a file, in hexadecimal."""

    bytes: int
    xxh3_128: str


def hashed(store: Store, path: str) -> FileRecord:
    """Return the record of the bytes of a file; of a remote file the whole is downloaded."""
    hasher, num_bytes = xxhash.xxh3_128(), 0
    for block in store.blocks(path):
        hasher.update(block)
        num_bytes += len(block)
    return FileRecord(num_bytes, hasher.hexdigest())


class HashedFile:
    """A file open for writing in order; writes to the device begin while it is written.

    Args:
        file: a new file.
        start_sync: starts to bring what was written to the device.
    """

    def __init__(self, file: IO[bytes], start_sync: Callable[[], None] | None = None) -> None:
        self._file, self._start_sync = file, start_sync
        self._hasher, self._num_bytes, self._num_synced = xxhash.xxh3_128(), 0, 0
        self.closed = False  # pyarrow asks

    def write(self, data: AnyBuffer) -> int:
        """Add bytes, or the contiguous items of an array; return how many bytes."""
        view = memoryview(data).cast("B")
        self._hasher.update(view)
        local_files.write_all(self._file, view)
        self._num_bytes += len(view)
        if self._start_sync and self._num_bytes - self._num_synced >= _SYNC_BYTES:
            self._num_synced = self._num_bytes
            self._file.flush()
            self._start_sync()
        return len(view)

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self._num_bytes

    @property
    def record(self) -> FileRecord:
        """The bytes that were written so far."""
        return FileRecord(self._num_bytes, self._hasher.hexdigest())


@contextmanager
def writing_hashed(store: Store, path: str) -> Iterator[HashedFile]:
    """Open a file of an export, which appears at `path` when the block ends without an error."""
    with store.writing(path) as file:
        syncing = local_files.syncing(file) if store.is_local else nullcontext()
        with syncing as start_sync:
            yield HashedFile(file, start_sync)
