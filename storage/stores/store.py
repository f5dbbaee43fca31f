"""The interface of a store, which is a local folder or an object store.

`open_store` returns a store for a path or URL. Callers use the methods below and never check the class: where stores
differ, they check a capability (`is_local`, `creates_exclusively`) or let the store decide (`local`, `is_damage`).
tests/storage/conformance.py tests each implementation against this description.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import IO, TYPE_CHECKING, Any, ClassVar, NamedTuple

from tokenloom.errors import StoreError
from tokenloom.storage.stores import local_files

if TYPE_CHECKING:
    from pathlib import Path

TMP = "work/tmp"  # unfinished files and probes of a dataset
MAX_TRANSFERS = 3  # attempts to transfer a file, or a part of it, that arrives damaged
STALE_SECONDS = 24 * 3600  # a temporary file of this age belongs to a killed process, where no more is known

_LARGE_BYTES = 16 * 2**20  # block size in announced ranges
BLOCK_BYTES = 2**20  # block size elsewhere
_GAP_BYTES = 2**16  # largest gap between ranges that share a request
_NUM_KEPT = 4  # blocks in memory


class StoredFile(NamedTuple):
    """A file of a store; `modified` is when it was written, in seconds since 1970, by the store's clock."""

    num_bytes: int
    modified: float


def cut_short(place: str, num_bytes: int, start: int, end: int) -> str:
    """Return that the file at `place` has only `num_bytes`, although its bytes [start, end) are read."""
    return f"{place}: {num_bytes:,} bytes, but bytes [{start:,}, {end:,}) were read: it was cut short; restore it"


def join_ranges(ranges: Iterable[tuple[int, int]], max_gap: int, max_size: int) -> list[tuple[int, int]]:
    """Return the ranges [start, end) that cover ascending ones in few requests.

    Example: join_ranges([(0, 2), (3, 6), (8, 9)], 1, 4) -> [(0, 4), (4, 6), (8, 9)]

    Args:
        ranges: by ascending start; they may overlap.
        max_gap: the largest gap that is requested too.
        max_size: the maximum size of a returned range.
    """
    joined: list[tuple[int, int]] = []
    for start, end in ranges:
        if joined and start - joined[-1][1] <= max_gap:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return [(at, min(at + max_size, end)) for start, end in joined for at in range(start, end, max_size)]


class Store(ABC):
    """The folder of one dataset; each `path` below is relative to it, with '/'. Pickles small.

    A file is complete as soon as it is visible under its name. Methods that read or write raise StoreError if the
    store cannot be read or written, and for a path that would leave the store.
    """

    is_local: ClassVar[bool]  # files are on a file system of this machine: reads are cheap and errors final
    root: Path | str  # a local path, or a URL without credentials

    @abstractmethod
    def place(self, path: str) -> str:
        """Return the local path or URL of `path`, for messages."""

    def local(self, path: str) -> Path | None:
        """Return the local path of `path`, None if the store is not a local folder."""
        return None

    # ---- capabilities

    @abstractmethod
    def creates_exclusively(self) -> bool:
        """Return whether `create` lets exactly one of several writers succeed; raise StoreError if none may write.

        A remote store keeps a probe in work/tmp; a local folder keeps nothing.
        """

    def free_bytes(self) -> int | None:
        """Return the free bytes of the store's file system, None if unknown."""
        return None

    def is_damage(self, error: OSError) -> bool:
        """Return whether an error raised by reading a file means that the file is damaged.

        It does not if the same read may succeed later or for another user: the network, permissions, a lost mount.
        """
        return False

    # ---- listing

    def exists(self, path: str) -> bool:
        """Return whether `path` is a file or folder."""
        return self.status(path) is not None or bool(self.names(path))

    @abstractmethod
    def status(self, path: str) -> StoredFile | None:
        """Return the length of the file at `path` and when it was written; None if there is no file.

        Object stores may round the time down to a second.
        """

    def num_bytes(self, path: str) -> int | None:
        """Return the length of the file at `path` in bytes, None if there is no file."""
        status = self.status(path)
        return status.num_bytes if status else None

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """Return the sorted names in `folder`, an empty list if it does not exist."""

    def lengths(self, folder: str) -> dict[str, int]:
        """Return the lengths in bytes of the files in `folder`, sorted by name; empty if it does not exist."""
        found = {name: self.status(f"{folder}/{name}".lstrip("/")) for name in self.names(folder)}
        return {name: status.num_bytes for name, status in found.items() if status}

    @abstractmethod
    def files_below(self, folder: str) -> dict[str, StoredFile]:
        """Return all files in `folder` and in the folders below it, by path in the store, sorted; follows no link.

        Empty if the folder does not exist.
        """

    # ---- reading

    @abstractmethod
    def read(self, path: str) -> bytes:
        """Return the bytes of the file at `path`; raises FileNotFoundError, StoreError."""

    @abstractmethod
    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of the file at `path`, all of them.

        Raises:
            FileNotFoundError: the file does not exist.
            FormatError: the file is shorter than `end`.
            StoreError: the file cannot be read.
        """

    @abstractmethod
    def blocks(self, path: str) -> Iterator[memoryview]:
        """Yield the file at `path` in blocks of a few MiB; each block is valid until the next one is requested.

        All blocks but the last are a multiple of 8 bytes long. Raises FileNotFoundError, StoreError.
        """

    def read_all(self, paths: Sequence[str]) -> list[bytes | None]:
        """Return the bytes of many small files: None for each that does not exist, b"" for each that is damaged.

        Raises StoreError if the store can't be read.
        """
        return [self._read_if_present(path) for path in paths]

    def _read_if_present(self, path: str) -> bytes | None:
        try:
            return self.read(path)
        except FileNotFoundError:
            return None
        except StoreError as error:
            if not self.is_damage(error):
                raise
            return b""  # no record is empty: whoever decodes it finds the damage

    # ---- writing

    @abstractmethod
    def create(self, path: str, data: bytes) -> None:
        """Write a new file; exactly one of several writers succeeds if the store `creates_exclusively`.

        Raises FileExistsError if the file exists, StoreError if it cannot be written.
        """

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Write a file or replace an existing one; readers see the old or the new bytes, never a mix."""
        with self.writing(path, durable=durable) as file:
            local_files.write_all(file, data)

    @abstractmethod
    def writing(self, path: str, *, durable: bool = True) -> AbstractContextManager[IO[bytes]]:
        """Open a new file for writing and reading; it appears at `path` when the block ends without an error.

        Args:
            path: its name in the store.
            durable: make the file survive a power failure before the block ends; False for work files.
        """

    @abstractmethod
    def remove(self, path: str) -> None:
        """Delete the file at `path` if it exists."""

    def remove_files(self, paths: Sequence[str]) -> None:
        """Delete the files at `paths`, in any order; files that do not exist are ignored."""
        for path in paths:
            self.remove(path)

    @abstractmethod
    def remove_empty_folders(self, folder: str) -> None:
        """Delete `folder` and the folders below it, as far as they hold no file."""

    @abstractmethod
    def remove_stale_temporaries(self) -> None:
        """Delete the unfinished files that processes left more than a day ago.

        A local store deletes at once those of processes of this machine that have ended, and logs what that freed.
        """


class StoreFile(io.RawIOBase):
    """A file of a store, open for reading in blocks of one request each; errors as the store's `read_range`.

    Ranges that were announced are read in larger blocks. The last blocks are kept, so that seeking back a little, or
    alternating between two columns, requests nothing twice.

    Args:
        store: the store that holds the file.
        path: the file's path in the store.
        block_bytes: to read at once outside of announced ranges.

    Raises FileNotFoundError, StoreError.
    """

    def __init__(self, store: Store, path: str, block_bytes: int = BLOCK_BYTES) -> None:
        status = store.status(path)
        if status is None:
            raise FileNotFoundError(store.place(path))
        self._store, self._path, self._num_bytes, self._block_bytes = store, path, status.num_bytes, block_bytes
        self._position = 0
        self._announced: list[tuple[int, int]] = []
        self._kept: list[tuple[int, bytes]] = []  # (start, bytes), the one used last at the end

    def announce(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Announce that these ranges [start, end) will be read, so that few large requests cover them."""
        self._announced = join_ranges(sorted(ranges), _GAP_BYTES, _LARGE_BYTES)

    def readinto(self, buffer: Any) -> int:
        """Read into `buffer`; return the number of bytes, fewer than it holds only at the end of the file."""
        view = memoryview(buffer).cast("B")
        begin, end = self._position, min(self._position + len(view), self._num_bytes)
        while self._position < end:
            start, block = self._block(self._position)
            part = block[self._position - start : end - start]
            view[self._position - begin :][: len(part)] = part
            self._position += len(part)
        return self._position - begin

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
