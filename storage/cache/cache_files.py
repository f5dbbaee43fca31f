"""The folder of a shard cache: its files, their locks, and the space they take.

    <folder>/tokenloom-cache.json          the format of this folder
             CACHEDIR.TAG                  so that backups leave it out
             shards/<sha256>.tok           complete files; their modification time is the time of last use
             partial/<sha256>.<pid>.<id>   a running download, already as long as the complete file: reserved space
             partial/<sha256>.part, .map   a shard that is downloaded by blocks, see partial_file.py
             locks/<sha256>.lock           held while that shard is downloaded; room.lock while space is freed

Only files with these names in these folders are ever removed; all others belong to the user. Nothing is synced: after a
power failure a file may be short or contain zeros, which its length and the shard's own checksums reveal.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from tokenloom.errors import FormatError, StoreError, message_of
from tokenloom.storage.cache.partial_file import (
    COMPLETE,
    DAMAGED,
    PartialFile,
    close_unused,
    create_partial,
    is_in_use,
    map_path,
    open_partial,
)
from tokenloom.storage.formats.blocks import ShardBlocks
from tokenloom.storage.formats.names import SHA256_PATTERN
from tokenloom.storage.stores.local_files import read_regular

FORMAT_VERSION = 1
MARKER = "tokenloom-cache.json"
_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# Made by tokenloom; https://bford.info/cachedir/\n"
_SHARD = re.compile(r"([0-9a-f]{64})\.tok\Z")
_PARTIAL = re.compile(r"[0-9a-f]{64}\.part\Z")
_DOWNLOAD = re.compile(r"([0-9a-f]{64})\.\d+\.[0-9a-f]{32}\Z")
_FOLDERS = ("shards", "partial", "locks")
POLL_SECONDS = 0.02  # between attempts to take a lock
_FULL = (errno.ENOSPC, errno.EDQUOT)


def is_full(error: OSError) -> bool:
    """Return whether an error means that the disk or the quota is full."""
    return error.errno in _FULL


@contextmanager
def translate_cache_errors(folder: Path) -> Iterator[None]:
    """Raise an OSError in the cache at `folder` as a StoreError with reason and next step."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        advice = "free space there, or" if is_full(error) else "give this user permission to write there, or"
        raise StoreError(
            f"{folder}: the cache can't be used: {error.strerror or error}; {advice} set TOKENLOOM_CACHE to "
            "another folder"
        ) from error


class CacheFiles:
    """The files of a cache; keeps no file open and holds no lock between calls.

    Args:
        folder: the cache's folder; created with the first file.
        limit_bytes: the limit of complete files and running downloads together; None for no limit.
    """

    def __init__(self, folder: Path, limit_bytes: int | None) -> None:
        self.folder, self.limit_bytes = folder, limit_bytes
        self.num_evicted = 0  # complete files that this object removed to free space

    def path(self, sha256: str) -> Path:
        """Return the path of the complete file; raises FormatError if `sha256` is not a SHA-256."""
        if not SHA256_PATTERN.match(sha256):
            raise FormatError(f"{sha256!r} is not a SHA-256 of 64 hexadecimal digits; the manifest is damaged")
        return self.folder / "shards" / f"{sha256}.tok"

    def num_bytes(self, sha256: str) -> int | None:
        """Return the length of the complete file, None if it does not exist; raises StoreError for a link or folder."""
        path = self.path(sha256)
        try:
            found = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not stat.S_ISREG(found.st_mode):
            raise StoreError(f"{path}: a link or folder, where the cache keeps a file; move it away")
        return found.st_size

    def prepare(self) -> None:
        """Create the folder; raises StoreError if that fails."""
        with translate_cache_errors(self.folder):
            for name in _FOLDERS:
                folder = self.folder / name
                folder.mkdir(parents=True, exist_ok=True)
                if folder.is_symlink():  # files behind it may be the user's and must not be removed
                    raise StoreError(f"{folder}: it is a link; set TOKENLOOM_CACHE to the folder it points to")
            marker = json.dumps({"format_version": FORMAT_VERSION}) + "\n"
            for name, text in ((MARKER, marker), ("CACHEDIR.TAG", _TAG)):
                if not (self.folder / name).exists():
                    temporary = self.folder / "partial" / f"{name}.{uuid.uuid4().hex}"
                    temporary.write_text(text, encoding="ascii")
                    temporary.replace(self.folder / name)

    def check_format(self) -> None:
        """Raise StoreError if a newer release created this folder."""
        marker = self.folder / MARKER
        try:
            found = json.loads(read_regular(marker))["format_version"]
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"{marker}: can't be read ({message_of(error)}); set TOKENLOOM_CACHE to another folder"
            ) from error
        if found != FORMAT_VERSION:
            raise StoreError(
                f"{marker}: cache format {found}; this release uses format {FORMAT_VERSION}: update tokenloom, or set "
                "TOKENLOOM_CACHE to another folder"
            )

    def shard_lock(self, sha256: str) -> FileLock:
        """Return the lock of one shard's download; a new object each time, as threads must not share one."""
        return FileLock(self.folder / "locks" / f"{sha256}.lock")

    def used(self) -> int:
        """Return the bytes of all complete files and running downloads."""
        # Downloads first, and by inode: a download that completes between the two listings is counted once.
        states = [found for found, _, _ in self._downloads()]
        states += [found for found, _ in self._partials()]
        states += [found for found, _ in self._shards()]
        return sum({state.st_ino: state.st_size for state in states}.values())

    def reserve(self, sha256: str, num_bytes: int) -> Path | None:
        """Return a new file of `num_bytes` to download into, None while other downloads take up the space.

        The caller holds the shard's lock. The least recently used files are removed until there is space.

        Raises StoreError if the file is larger than the limit.
        """
        self._check_limit(num_bytes)
        with self._room_lock():
            self._remove_leftovers(sha256)
            if not self._make_room(num_bytes):
                return None
            path = self.folder / "partial" / f"{sha256}.{os.getpid()}.{uuid.uuid4().hex}"
            with path.open("xb") as file:
                file.truncate(num_bytes)
            return path

    def _check_limit(self, num_bytes: int) -> None:
        if self.limit_bytes is not None and num_bytes > self.limit_bytes:
            raise StoreError(
                f"{self.folder}: a shard of {num_bytes:,} bytes is over the cache's limit of {self.limit_bytes:,}; "
                "raise it: TOKENLOOM_CACHE_LIMIT, or limit_bytes of the ShardCache"
            )

    def partial(self, blocks: ShardBlocks, *, is_locked: bool) -> PartialFile | None:
        """Return the file to download a shard into by blocks, which all processes of the machine share.

        None if the shard is complete by now, while somebody else downloads it as a whole, or while other downloads take
        up the space. `is_locked` says whether the caller holds the shard's lock. Errors as `reserve`.
        """
        self._check_limit(blocks.num_bytes)
        path = self.folder / "partial" / f"{blocks.sha256}.part"
        with self._room_lock():
            if self.num_bytes(blocks.sha256) == blocks.num_bytes:
                return None
            if (found := open_partial(path, blocks)) is not None:
                return found
            self._remove_leftovers(blocks.sha256 if is_locked else None)
            if self.downloader(blocks.sha256) or is_in_use(path) or not self._make_room(blocks.num_bytes):
                return None
            try:
                create_partial(path, blocks)
            except OSError as error:
                if not is_full(error):
                    raise
                self._remove_shards()
                create_partial(path, blocks)
            return open_partial(path, blocks)

    def end_partial(self, partial: PartialFile, is_right: bool) -> None:
        """Give a partial file that has all its blocks the name of a complete one; remove it if its SHA-256 is wrong."""
        with self._room_lock():
            if is_right:
                partial.path.replace(self.path(partial.blocks.sha256))
            else:
                partial.path.unlink(missing_ok=True)
            partial.end(COMPLETE if is_right else DAMAGED)

    def close_unused(self) -> None:
        """Close the partial files that no shard of this process uses, so that they can be removed."""
        if self.folder.exists():
            with translate_cache_errors(self.folder), self._room_lock():
                pass  # it closes them

    def remove(self, sha256: str) -> bool:
        """Remove a complete file; return whether it existed."""
        if self.num_bytes(sha256) is None:
            return False
        try:
            self.path(sha256).unlink()
        except FileNotFoundError:
            return False
        return True

    def remove_all(self) -> None:
        """Remove all complete files."""
        with self._room_lock():
            self._remove_shards()

    def _remove_shards(self) -> None:
        self.num_evicted += sum(self.remove(sha256) for _, sha256 in list(self._shards()))

    @contextmanager
    def _room_lock(self) -> Iterator[None]:
        with FileLock(self.folder / "locks" / "room.lock").acquire(poll_interval=POLL_SECONDS):
            close_unused(self.folder / "partial")
            yield

    def _make_room(self, num_bytes: int) -> bool:
        """Remove the least recently used files until `num_bytes` more fit into the limit; return whether they fit."""
        if self.limit_bytes is None:
            return True
        excess = self.used() + num_bytes - self.limit_bytes
        for found, path in list(self._partials()):
            if excess > 0 and not is_in_use(path):
                map_path(path).unlink(missing_ok=True)
                path.unlink(missing_ok=True)
                excess -= found.st_size
        for found, sha256 in sorted(self._shards(), key=lambda item: item[0].st_mtime_ns):
            if excess <= 0:
                break
            if self.remove(sha256):
                excess -= found.st_size
                self.num_evicted += 1
        return excess <= 0

    def _remove_leftovers(self, own: str | None) -> None:
        """Remove downloads of ended processes: the shard's lock is free, or the caller holds it, that of `own`."""
        for _, sha256, path in list(self._downloads()):
            if sha256 == own:
                path.unlink(missing_ok=True)
                continue
            with suppress(Timeout), self.shard_lock(sha256).acquire(timeout=0):
                path.unlink(missing_ok=True)

    def downloader(self, sha256: str) -> int | None:
        """Return the process that downloads a shard as a whole, None if nobody does."""
        pids = [int(path.name.split(".")[1]) for _, found, path in self._downloads() if found == sha256]
        return pids[0] if pids else None

    def _shards(self) -> Iterator[tuple[os.stat_result, str]]:
        for found, name in _files(self.folder / "shards"):
            if match := _SHARD.match(name):
                yield found, match[1]

    def _partials(self) -> Iterator[tuple[os.stat_result, Path]]:
        """Yield the status and path of each file that is downloaded by blocks."""
        for found, name in _files(self.folder / "partial"):
            if _PARTIAL.match(name):
                yield found, self.folder / "partial" / name

    def _downloads(self) -> Iterator[tuple[os.stat_result, str, Path]]:
        for found, name in _files(self.folder / "partial"):
            if match := _DOWNLOAD.match(name):
                yield found, match[1], self.folder / "partial" / name


def _files(folder: Path) -> Iterator[tuple[os.stat_result, str]]:
    """Yield the status and name of each regular file in a folder; skip links and folders."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    found = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(found.st_mode):
                        yield found, entry.name
    except (FileNotFoundError, NotADirectoryError):
        return


def mark_used(path: Path) -> None:
    """Record that a file is used now."""
    with suppress(OSError):  # a read-only cache is still readable
        now = time.time_ns()
        os.utime(path, ns=(now, now))
