"""A store in a local folder: durable, atomic writes under relative names.

A file appears under its name complete or not at all: it is written under a unique name in work/tmp, synced, then
renamed (`replace`, `writing`) or linked (`create`, which fails if the name exists), and its folder is synced. The
unique name says which process writes the file. Work files (spills and their records) are not synced: their checksums
show damage.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tokenloom.errors import FormatError, StoreError, WorkError
from tokenloom.process import has_ended, process_name
from tokenloom.storage.stores import local_files
from tokenloom.storage.stores.local_files import DAMAGE, open_regular, translate_errors
from tokenloom.storage.stores.store import STALE_SECONDS, TMP, Store, StoredFile, cut_short
from tokenloom.wording import counted, locale_advice, shown_bytes

_BLOCK_BYTES = 2**20  # a block stays in the processor's cache from one checksum to the next


class LocalStore(Store):
    """The folder of one dataset on a local disk.

    Args:
        root: a local path, or a file:// URL.
    """

    is_local = True
    root: Path

    def __init__(self, root: str | Path) -> None:
        if "\0" in str(root):
            raise StoreError(f"store {str(root)!r}: a path can't contain a NUL character; remove it")
        self.root = Path(str(root).removeprefix("file://")).expanduser().absolute()
        try:
            os.fsencode(self.root)
        except UnicodeEncodeError as error:
            raise StoreError(f"store {str(self.root)!a}: this name can't be written{locale_advice()}") from error

    def __repr__(self) -> str:
        return f"LocalStore({str(self.root)!r})"

    def local(self, path: str) -> Path:
        """Return the local path of `path`."""
        parts = path.split("/")
        if ".." in parts or path.startswith("/") or "\0" in path:
            raise StoreError(f"{path!r} would leave the store {self.root}")
        return self.root / path

    def place(self, path: str) -> str:
        """Return the local path of `path`, for messages."""
        return str(self.local(path))

    # ---- capabilities

    def creates_exclusively(self) -> bool:
        """Return True; raise StoreError if it can't be written, or not exclusively. Leaves nothing, also no folder."""
        with translate_errors(self.root, "written"):
            probe = local_files.existing_parent(self.local(TMP)) / f".tokenloom.{os.urandom(16).hex()}"
            final = probe.with_name(f"{probe.name}.linked")
            try:
                probe.touch(exist_ok=False)
                local_files.name_exclusively(probe, final)
            finally:
                for path in (probe, final):
                    path.unlink(missing_ok=True)
        return True

    def free_bytes(self) -> int | None:
        """Return the free bytes of the store's file system, None if unknown."""
        status = os.statvfs(local_files.existing_parent(self.root))
        return status.f_bavail * status.f_frsize if status.f_blocks else None  # /proc and the like have no disk

    def is_damage(self, error: OSError) -> bool:
        """Return whether an error raised by reading a file means that the file is damaged."""
        return getattr(error.__cause__ or error, "errno", None) in (None, *DAMAGE)

    # ---- listing

    def exists(self, path: str) -> bool:
        """Return whether `path` is a file or folder, also an empty one."""
        with translate_errors(self.local(path)):
            return self.local(path).exists()

    def status(self, path: str) -> StoredFile | None:
        """Return the length and time of the regular file at `path`, None if there is none."""
        try:
            with translate_errors(self.local(path)):
                status = self.local(path).stat()
        except FileNotFoundError:
            return None
        return StoredFile(status.st_size, status.st_mtime) if stat.S_ISREG(status.st_mode) else None

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in `folder`, an empty list if it does not exist."""
        try:
            with translate_errors(self.local(folder)):
                return sorted(os.listdir(self.local(folder)))
        except FileNotFoundError:
            return []

    def files_below(self, folder: str) -> dict[str, StoredFile]:
        """Return all files in `folder` and below, by path, sorted; a link is a file of its own."""
        found: dict[str, StoredFile] = {}
        pending = [folder]
        while pending:
            at = pending.pop()
            place = self.local(at)
            with suppress(FileNotFoundError), translate_errors(place), os.scandir(place) as entries:
                for entry in entries:
                    path = f"{at}/{entry.name}".lstrip("/")
                    with suppress(FileNotFoundError):  # deleted since the folder was listed
                        if entry.is_dir(follow_symlinks=False):
                            pending.append(path)
                        else:
                            status = entry.stat(follow_symlinks=False)
                            found[path] = StoredFile(status.st_size, status.st_mtime)
        return dict(sorted(found.items()))

    # ---- reading

    def read(self, path: str) -> bytes:
        """Return the bytes of the file at `path`; raises FileNotFoundError, StoreError."""
        place = self.local(path)
        with translate_errors(place), open_regular(place) as file:
            return file.read()

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of the file at `path`; errors as `Store.read_range`."""
        place = self.local(path)
        with translate_errors(place), open_regular(place) as file:
            file.seek(start)
            data = file.read(end - start)
        if len(data) < end - start:
            raise FormatError(cut_short(str(place), start + len(data), start, end))
        return data

    def blocks(self, path: str) -> Iterator[memoryview]:
        """Yield the file at `path` in blocks of 1 MiB, all in one buffer; errors as `read`."""
        place, buffer = self.local(path), memoryview(bytearray(_BLOCK_BYTES))
        with translate_errors(place), open_regular(place) as file:
            while num_bytes := file.readinto(buffer):
                yield buffer[:num_bytes]

    # ---- writing

    def create(self, path: str, data: bytes) -> None:
        """Write a new file; raises FileExistsError if it exists, StoreError if it cannot be written."""
        with self.writing(path, exclusive=True) as file:
            local_files.write_all(file, data)

    @contextmanager
    def writing(self, path: str, *, durable: bool = True, exclusive: bool = False) -> Iterator[IO[bytes]]:
        """Open a new file that appears at `path` when the block ends, `exclusive` in place of no other; see `Store`."""
        final, temporaries = self.local(path), self.local(TMP)
        try:
            with translate_errors(final, "written"):
                for folder in (final.parent, temporaries):
                    self._check_inside(folder)
                    make_folder(folder)
                temporary = temporaries / f"{final.name[:40]}.{process_name(os.getpid())}.{os.urandom(8).hex()}"
                with local_files.writing_atomically(final, temporary, durable=durable, exclusive=exclusive) as file:
                    yield file
        except FileNotFoundError as error:  # another program has deleted work/
            raise WorkError(str(final)) from error

    def remove(self, path: str) -> None:
        """Delete the file at `path` if it exists."""
        self.remove_files([path])

    def remove_files(self, paths: Sequence[str]) -> None:
        """Delete the files at `paths`; looks at each folder once. Files that do not exist are ignored."""
        places = [self.local(path) for path in paths]
        for folder in {place.parent for place in places}:
            self._check_inside(folder)
        for place in places:
            with translate_errors(place, "written"):
                place.unlink(missing_ok=True)

    def _check_inside(self, folder: Path) -> None:
        """Raise StoreError if a link in the dataset's folder leads out of it; the folder itself may be a link."""
        real = os.path.realpath(folder)
        if not Path(real).is_relative_to(os.path.realpath(self.root)):
            raise StoreError(
                f"{folder}: a link in {self.root} leads out of it, to {real}, where tokenloom writes and deletes "
                "nothing; replace the link with a folder and run the same command again"
            )

    def remove_empty_folders(self, folder: str) -> None:
        """Delete `folder` and the folders below it, as far as they hold no file."""
        for place, _, _ in os.walk(self.local(folder), topdown=False):
            with suppress(OSError):  # it has files, or stays as an empty folder
                os.rmdir(place)

    def remove_stale_temporaries(self) -> None:
        """Delete what ended processes of this machine left in work/tmp, and what others left more than a day ago."""
        before = time.time() - STALE_SECONDS
        freed = []
        for path, file in self.files_below(TMP).items():
            has_writer_ended = has_ended(path)
            if has_writer_ended or (has_writer_ended is None and file.modified < before):
                self.remove(path)
                freed.append(file.num_bytes)
        if freed:
            import logging  # a reader removes nothing

            files = counted(len(freed), "unfinished file")
            logger = logging.getLogger("tokenloom")
            logger.warning("removed %s of processes that ended: %s freed", files, shown_bytes(sum(freed)))


def make_folder(folder: Path) -> None:
    """Create `folder` and its parents; sync each into the folder above it."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    try:
        folder.mkdir(exist_ok=True)
    except FileExistsError as error:  # callers of `create` would read it as "another writer was first"
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from error
    local_files.sync_folder(folder.parent)
