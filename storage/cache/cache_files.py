"""The folder of a shard cache: its files, their locks, and the space they take.

    <folder>/tokenloom-cache.json   the format of this folder
             CACHEDIR.TAG           so that backups leave it out
             shards/<sha256>.tok    complete files
             partial/<sha256>.part  a shard of which some blocks are here: sparse, and as long as the complete file
                     <sha256>.claims  when the download of each of its blocks began, see partial_shard.py
             locks/<sha256>.lock    held while that shard is completed; room.lock while space is freed

The modification time of a file is the time of its last use. Only files with these names in these folders are ever
removed; all others belong to the user. Whoever maps or reads a file keeps its bytes when it is removed, so any file may
go, except one that is being completed. A complete file is synced before it gets its name, a partial one is not: each
process verifies its blocks.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout

from tokenloom.errors import FormatError, StoreError, message_of
from tokenloom.storage.formats.names import SHA256_PATTERN
from tokenloom.storage.stores.local_files import read_regular

FORMAT_VERSION = 1
MARKER = "tokenloom-cache.json"
_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# Made by tokenloom; https://bford.info/cachedir/\n"
# In this order: a file that is completed between the two listings is seen twice, not missed.
_SUFFIXES = {"partial": ".part", "shards": ".tok"}
_NAME = re.compile(r"([0-9a-f]{64})(\.part|\.tok)\Z")
_ROOM_POLL_SECONDS = 0.005  # between attempts to take the lock for room, which is held for milliseconds
_FULL = (errno.ENOSPC, errno.EDQUOT)


class _CachedFile(NamedTuple):
    """A complete or partial file of the cache."""

    path: Path
    sha256: str
    status: os.stat_result


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
        refused = "give this user permission to write there, or " if isinstance(error, PermissionError) else ""
        advice = "free space there, or " if is_full(error) else refused
        raise StoreError(
            f"{folder}: the cache can't be used: {error.strerror or error}; {advice}set TOKENLOOM_CACHE to "
            "another folder"
        ) from error


class CacheFiles:
    """The files of a cache; keeps no file open and holds no lock between calls.

    Args:
        folder: the cache's folder; created with the first file.
        limit_bytes: the limit of complete and partial files together; None for no limit.
    """

    def __init__(self, folder: Path, limit_bytes: int | None) -> None:
        self.folder, self.limit_bytes = folder, limit_bytes
        self.num_evicted = 0  # files that this object removed to free space

    def path(self, sha256: str) -> Path:
        """Return the path of the complete file; raises FormatError if `sha256` is not a SHA-256."""
        if not SHA256_PATTERN.match(sha256):
            raise FormatError(f"{sha256!r} is not a SHA-256 of 64 hexadecimal digits; the manifest is damaged")
        return self.folder / "shards" / f"{sha256}.tok"

    def partial_path(self, sha256: str) -> Path:
        """Return the path of the file that a shard is downloaded into."""
        return self.folder / "partial" / f"{sha256}.part"

    def claims_path(self, sha256: str) -> Path:
        """Return the path of the file that says which blocks of a shard are being downloaded."""
        return self.folder / "partial" / f"{sha256}.claims"

    def num_bytes(self, sha256: str) -> int | None:
        """Return the length of the complete file, None if it does not exist; raises StoreError for a link or folder."""
        return _length(self.path(sha256))

    def prepare(self) -> None:
        """Create the folder; raises StoreError if that fails."""
        with translate_cache_errors(self.folder):
            for name in (*_SUFFIXES, "locks"):
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
        """Return the bytes of all complete and partial files."""
        return sum({file.status.st_ino: file.status.st_size for file in self._files()}.values())

    def open_partial(self, sha256: str, num_bytes: int) -> tuple[int, int] | None:
        """Return descriptors of the file that a shard of `num_bytes` is downloaded into, and of its claims.

        Both are created if necessary; the least recently used files are removed until there is space. None while other
        downloads take it up.

        Raises:
            FileExistsError: somebody has completed the shard.
            StoreError: the shard is larger than the limit.
        """
        if self.limit_bytes is not None and num_bytes > self.limit_bytes:
            raise StoreError(
                f"{self.folder}: a shard of {num_bytes:,} bytes is over the cache's limit of {self.limit_bytes:,}; "
                "raise it: TOKENLOOM_CACHE_LIMIT, or limit_bytes of the ShardCache"
            )
        path = self.partial_path(sha256)
        with self._room_lock():
            if self.num_bytes(sha256) == num_bytes:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(self.path(sha256)))
            if _length(path) != num_bytes and not self._make_room(num_bytes):
                return None
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            try:
                os.ftruncate(descriptor, num_bytes)
                return descriptor, os.open(self.claims_path(sha256), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            except OSError:
                os.close(descriptor)
                raise

    def complete(self, sha256: str, descriptor: int) -> None:
        """Give a partial file whose SHA-256 is right its name; the caller holds the shard's lock.

        Raises FileNotFoundError if somebody has removed the file.
        """
        partial = self.partial_path(sha256)
        os.fsync(descriptor)
        with self._room_lock():
            if not os.path.samestat(os.fstat(descriptor), partial.stat()):  # removed, and made again by another process
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(partial))
            partial.replace(self.path(sha256))
            self.claims_path(sha256).unlink(missing_ok=True)

    def remove_partial(self, sha256: str) -> None:
        """Remove a partial file and its claims; the caller holds the shard's lock."""
        with self._room_lock():
            self.partial_path(sha256).unlink(missing_ok=True)
            self.claims_path(sha256).unlink(missing_ok=True)

    def remove(self, sha256: str) -> bool:
        """Remove a complete file; return whether it existed. The caller holds the shard's lock."""
        if self.num_bytes(sha256) is None:
            return False
        self.path(sha256).unlink(missing_ok=True)
        return True

    def remove_all(self) -> None:
        """Remove all files, because the disk is full."""
        with self._room_lock():
            self._evict(math.inf)

    @contextmanager
    def _room_lock(self) -> Iterator[None]:
        with FileLock(self.folder / "locks" / "room.lock").acquire(poll_interval=_ROOM_POLL_SECONDS):
            yield

    def _make_room(self, num_bytes: int) -> bool:
        """Remove the least recently used files until `num_bytes` more fit into the limit; return whether they fit."""
        excess = 0 if self.limit_bytes is None else self.used() + num_bytes - self.limit_bytes
        return excess <= 0 or self._evict(excess) >= excess

    def _evict(self, num_bytes: float) -> int:
        """Remove the least recently used files until so many bytes are free; return how many are."""
        num_freed = 0
        for file in sorted(self._files(), key=lambda file: file.status.st_mtime_ns):
            if num_freed >= num_bytes:
                break
            with suppress(Timeout), self.shard_lock(file.sha256).acquire(timeout=0):  # else it is being completed
                file.path.unlink(missing_ok=True)
                self.claims_path(file.sha256).unlink(missing_ok=True)
                num_freed += file.status.st_size
                self.num_evicted += 1
        return num_freed

    def _files(self) -> Iterator[_CachedFile]:
        """Yield the regular files of the cache; skip links, folders, and files with other names."""
        for name, suffix in _SUFFIXES.items():
            with suppress(FileNotFoundError, NotADirectoryError), os.scandir(self.folder / name) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        if (match := _NAME.match(entry.name)) and match[2] == suffix and stat.S_ISREG(status.st_mode):
                            yield _CachedFile(Path(entry.path), match[1], status)


def _length(path: Path) -> int | None:
    """Return the length of a file, None if it does not exist; raises StoreError for a link or folder."""
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(found.st_mode):
        raise StoreError(f"{path}: a link or folder, where the cache keeps a file; move it away")
    return found.st_size


def mark_used(path: Path) -> None:
    """Record that a file is used now."""
    with suppress(OSError):  # a read-only cache is still readable
        now = time.time_ns()
        os.utime(path, ns=(now, now))
