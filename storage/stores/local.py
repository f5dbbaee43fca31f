"""A store's root folder: durable, atomic writes under relative names.

A file appears under its name complete or not at all: it is written under a unique name in work/tmp, synced,
then renamed (`replace`) or linked (`create`, which fails if the name is taken), and the folder is synced. Work
files (spills, their records) are not synced: a damaged one is found by its checksums and made again.

All writing goes through `Store`, or its twin for remote stores (remote.py), which has the same methods.
"""

from __future__ import annotations

import errno
import os
import stat
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tokenloom.errors import FormatError, StoreError, WorkError
from tokenloom.storage.stores.disk_errors import check_folder, check_regular, read_told, write_told
from tokenloom.storage.stores.disk_space import free_bytes

TMP = "work/tmp"
BLOCK_BYTES = 4 * 2**20
_STALE_SECONDS = 24 * 3600


class Store:
    """The folder of one dataset in a store; every `path` below is relative to it, with '/'.

    Args:
        root: an absolute local path.
    """

    def __init__(self, root: str | Path) -> None:
        if "://" in str(root) and not str(root).startswith("file://"):
            raise StoreError(f"store {root}: a folder is wanted here; open_store opens URLs")
        self.root = Path(str(root).removeprefix("file://"))

    def __repr__(self) -> str:
        return f"Store({str(self.root)!r})"

    def local(self, path: str) -> Path:
        """Return the local path of `path`; raises StoreError for a name that would leave the store."""
        parts = path.split("/")
        if ".." in parts or path.startswith("/") or "\0" in path:
            raise StoreError(f"{path!r} would leave the store {self.root}")
        return self.root.joinpath(*parts)

    def place(self, path: str) -> str:
        """Return where `path` lies, for messages; raises StoreError for a name that would leave the store."""
        return str(self.local(path))

    def exists(self, path: str) -> bool:
        """Return whether a file or folder stands at `path`."""
        with read_told(self.local(path)):
            return self.local(path).exists()

    def num_bytes(self, path: str) -> int | None:
        """Return the length of the file at `path` in bytes, None if there is none."""
        try:
            with read_told(self.local(path)):
                status = self.local(path).stat()
        except FileNotFoundError:
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def free_bytes(self) -> int | None:
        """Return the free bytes of the store's file system; None if it does not tell."""
        return free_bytes(self.root)

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in `folder`, none if it does not exist."""
        try:
            with read_told(self.local(folder)):
                return sorted(os.listdir(self.local(folder)))
        except FileNotFoundError:
            return []

    def lengths(self, folder: str) -> dict[str, int]:
        """Return the lengths of the files in `folder` by name, sorted; none if it does not exist."""
        found: dict[str, int] = {}
        with suppress(FileNotFoundError), read_told(self.local(folder)), os.scandir(self.local(folder)) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # it was there a moment ago
                    if entry.is_file():
                        found[entry.name] = entry.stat().st_size
        return dict(sorted(found.items()))

    def read_all(self, paths: Sequence[str]) -> list[bytes | None]:
        """Return the bytes of many small files, None for one that is missing; raises StoreError."""

        def read(path: str) -> bytes | None:
            with suppress(FileNotFoundError):
                return self.read(path)
            return None

        return [read(path) for path in paths]

    def read(self, path: str) -> bytes:
        """Return the bytes of the file at `path`; raises FileNotFoundError, StoreError."""
        place = self.local(path)
        with read_told(place):
            check_regular(place)
            return place.read_bytes()

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of the file at `path`, all of them.

        Raises:
            FileNotFoundError: there is no such file.
            FormatError: the file is shorter than `end`.
            StoreError: it can't be read.
        """
        data = self._up_to(path, start, end)
        if len(data) < end - start:
            raise FormatError(f"{self.local(path)}: {start + len(data)} bytes, [{start}, {end}) wanted: cut short?")
        return data

    def _up_to(self, path: str, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of a file, or those up to its end."""
        place = self.local(path)
        with read_told(place):
            check_regular(place)
            with place.open("rb", buffering=0) as file:
                file.seek(start)
                data = b""
                while part := file.read(end - start - len(data)):
                    data += part
        return data

    def blocks(self, path: str) -> Iterator[bytes]:
        """Yield the bytes of the file at `path`, BLOCK_BYTES at most at a time; errors as `read`."""
        start = 0
        while block := self._up_to(path, start, start + BLOCK_BYTES):
            yield block
            start += len(block)

    def create(self, path: str, data: bytes) -> None:
        """Write a file that must not exist yet; of several writers exactly one succeeds.

        Raises FileExistsError if there is a file at `path`, StoreError if it can't be written.
        """
        _again_if_deleted(lambda: self._create(self.local(path), data))

    def _create(self, final: Path, data: bytes) -> None:
        with write_told(final):
            self._make_folder(final.parent)
            temporary = self._temporary_name(final.name)
            try:
                with temporary.open("xb") as file:
                    write_all(file, data)
                    sync(file)
                os.link(temporary, final)
            finally:
                temporary.unlink(missing_ok=True)
            try:
                sync_folder(final.parent)
            except OSError:  # a loss of power could take it away again, with what was told of it by then
                final.unlink(missing_ok=True)
                raise

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Write a file, over one that may be there; readers see the old or the new bytes, never a mix."""

        def write() -> None:
            with self.writing(path, durable=durable) as file:
                write_all(file, data)

        _again_if_deleted(write)

    @contextmanager
    def writing(self, path: str, *, durable: bool = True) -> Iterator[IO[bytes]]:
        """Open a new file for writing and reading that appears at `path` when the block ends well.

        Args:
            path: its name in the store.
            durable: sync file and folder, so that it outlives a loss of power; False for work files.
        """
        final = self.local(path)
        with write_told(final):
            self._make_folder(final.parent)
            temporary = self._temporary_name(final.name)
            try:
                with temporary.open("x+b") as file:
                    yield file
                    file.flush()
                    if durable:
                        sync(file)
                os.replace(temporary, final)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            if durable:
                sync_folder(final.parent)

    def remove(self, path: str) -> None:
        """Delete the file at `path` if there is one."""
        final = self.local(path)
        with write_told(final):
            self._check_inside(final.parent)
            final.unlink(missing_ok=True)

    def remove_stale_temporaries(self) -> None:
        """Delete what killed processes left in work/tmp more than a day ago."""
        before = time.time() - _STALE_SECONDS
        for name in self.names(TMP):
            path = f"{TMP}/{name}"
            with suppress(FileNotFoundError):  # its writer has just renamed it
                found = self.local(path).lstat()
                if stat.S_ISREG(found.st_mode) and found.st_mtime < before:
                    self.remove(path)

    def check_writable(self) -> None:
        """Raise StoreError if a dataset can't be written here; leaves nothing behind, not even a folder."""
        for name in (TMP, "versions", "tags"):
            with write_told(self.root):
                self._check_inside(self.local(name))
                check_folder(self.local(name))

    def exclusion_problem(self) -> str | None:
        """Return None: several builds at a time are safe, as of several links of one name one succeeds.

        Raises StoreError if the store can't be written.
        """
        self.check_writable()
        return None

    def _temporary_name(self, name: str) -> Path:
        folder = self.local(TMP)
        self._make_folder(folder)
        return folder / f"{name}.{uuid.uuid4().hex}"

    def _make_folder(self, folder: Path) -> None:
        self._check_inside(folder)
        make_folder(folder)

    def _check_inside(self, folder: Path) -> None:
        """Raise StoreError if a link in the dataset's folder leads out of it; the folder itself may be a link."""
        real = os.path.realpath(folder)
        if not Path(real).is_relative_to(os.path.realpath(self.root)):
            raise StoreError(
                f"{folder}: a link in {self.root} leads out of it, to {real}, where nothing is written or deleted; put "
                "a folder in the place of the link and run the same command again"
            )


def _again_if_deleted(write: Callable[[], None]) -> None:
    """Write once more if work/ was deleted in the middle: the bytes are still at hand."""
    try:
        write()
    except WorkError:
        write()


def write_all(file: IO[bytes], data: bytes | memoryview) -> None:
    """Write all of `data`; the one place where bytes enter a store."""
    file.write(data)


def sync(file: IO[bytes]) -> None:
    """Flush `file` and wait until its bytes are on the device."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the names in `folder` are on the device."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make `folder` and its parents, each synced into the folder above it."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    try:
        folder.mkdir(exist_ok=True)
    except FileExistsError as error:  # a writer may take it for "this name is taken"
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from error
    except FileNotFoundError as error:
        if folder.parent.is_dir():  # not deleted meanwhile: a place such as /proc, where nothing can be made
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder)) from error
        raise
    sync_folder(folder.parent)
