"""Token bytes that are read from a file on access."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Protocol

from tokenloom.errors import FormatError
from tokenloom.storage.stores.local_files import descriptor_of_regular

if TYPE_CHECKING:
    from pathlib import Path


class TokenBytes(Protocol):
    """The bytes of a shard's tokens: in a map, in a file, or in a PartialShard."""

    def __getitem__(self, part: slice[int, int, None]) -> memoryview | bytes: ...


class OpenFile:
    """A file that is open for reading, until the last reference to it is gone."""

    def __init__(self, path: Path) -> None:
        self.fd = descriptor_of_regular(path)
        weakref.finalize(self, os.close, self.fd)


class FileBytes:
    """Token bytes that are read on access, so that a truncated file raises an error instead of a signal."""

    def __init__(self, path: Path, start: int) -> None:
        self._file = OpenFile(path)
        self._path, self._start = path, start

    def __getitem__(self, part: slice[int, int, None]) -> bytes:
        wanted = part.stop - part.start
        data = os.pread(self._file.fd, wanted, self._start + part.start)
        if len(data) != wanted:
            raise FormatError(f"{self._path}: the file was cut short while it was read; restore it")
        return data
