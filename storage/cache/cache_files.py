"""The folder of a shard cache: where it is, its files, their locks, and the space they may take.

    <folder>/CACHEDIR.TAG             so that backups leave it out
             shards/<sha256>.tok      complete shards and masks
             partial/<sha256>.part    a file that is being downloaded; as long as the complete one
             locks/<sha256>.lock      held by the process that downloads that file; room.lock while space is freed

The modification time of a complete file is when it was last opened: the oldest is removed first. A reader holds a
shared lock on a file while it needs it, and such a file is not removed. The system releases the locks of a process that
ends. Only files with these names in these folders are ever removed; all others belong to the user.
"""

from __future__ import annotations

import fcntl
import math
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tokenloom.errors import StoreError
from tokenloom.storage.stores.local_files import (
    descriptor_of_regular,
    existing_parent,
    open_regular,
    replace_file,
    translate_errors,
)

if TYPE_CHECKING:
    from filelock import FileLock

_TAG = b"Signature: 8a477f597d28d172789f06886806bc55\n# Made by tokenloom; https://bford.info/cachedir/\n"
# In this order: a file that is completed between the two listings is seen twice, not missed.
_SUFFIXES = {"partial": r"\.part", "shards": r"\.tok"}
_ROOM_POLL_SECONDS = 0.005  # between attempts to take the lock for room, which is held for milliseconds
_DEFAULT_LIMIT_BYTES = 100 * 10**9
_LIMIT_VARIABLE = "TOKENLOOM_CACHE_LIMIT"
_FREE_SHARE = 0.8  # the largest share of the file system's free space that the default limit takes
_LIMIT = r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?))?B?\s*\Z"  # compiled where it is used: most readers set no limit


def default_limit(folder: Path) -> int:
    """Return the limit in bytes of the cache in `folder`; raises StoreError if TOKENLOOM_CACHE_LIMIT is not a size."""
    text = os.environ.get(_LIMIT_VARIABLE, "")
    if not text.strip():
        return _free_limit(folder)
    match = re.match(_LIMIT, text, re.I)
    base = 1024 if match and match[3] else 1000
    limit = float(match[1]) * base ** " KMGT".index((match[2] or " ").upper()) if match else 0.0
    if not 1 <= limit < 2**63:
        raise StoreError(f"{_LIMIT_VARIABLE} is {text!r}: write bytes, such as 100GB or 93GiB")
    return int(limit)


def _free_limit(folder: Path) -> int:
    """Return a limit that leaves part of the file system free; the bytes in the cache count as free."""
    import shutil  # most readers need no limit

    free = shutil.disk_usage(existing_parent(folder.absolute())).free + CacheFiles(folder, None).used()
    return max(1, min(_DEFAULT_LIMIT_BYTES, int(_FREE_SHARE * free)))


def translate_cache_errors(folder: Path) -> AbstractContextManager[None]:
    """Raise an OSError in the cache at `folder` as a StoreError; see translate_errors."""
    return translate_errors(folder, "written", ", or set TOKENLOOM_CACHE to another folder")


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
        """Return the path of the complete file."""
        return self.folder / "shards" / f"{sha256}.tok"

    def holds(self, sha256: str, num_bytes: int) -> bool:
        """Return whether there is a complete file of that name and length now."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return self.path(sha256).stat().st_size == num_bytes
        return False

    def prepare(self) -> None:
        """Create the folder; raises StoreError if that fails."""
        with translate_cache_errors(self.folder):
            for name in (*_SUFFIXES, "locks"):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
            if not (tag := self.folder / "CACHEDIR.TAG").exists():
                replace_file(tag, _TAG)

    def lock(self, name: str) -> FileLock:
        """Return the lock of a file's download, by its SHA-256; a new object each time, as threads can't share one."""
        from filelock import FileLock  # takes 25 ms, and readers of local stores lock nothing

        return FileLock(self.folder / "locks" / f"{name}.lock")

    def used(self) -> int:
        """Return the bytes of all complete and partial files."""
        return sum({status.st_ino: status.st_size for _, status in self._files()}.values())

    def reserve(self, sha256: str, num_bytes: int) -> Path | None:
        """Create the file that `num_bytes` are downloaded into; the caller holds the shard's lock.

        The least recently used files that no reader holds are removed until it fits. Returns None if it does not fit.
        """
        path = self.folder / "partial" / f"{sha256}.part"
        with self.lock("room").acquire(poll_interval=_ROOM_POLL_SECONDS):
            path.unlink(missing_ok=True)  # a killed process left it
            if self.limit_bytes is not None:
                excess = self.used() + num_bytes - self.limit_bytes
                if num_bytes > self.limit_bytes or (excess > 0 and self.evict(excess) < excess):
                    return None
            with path.open("xb") as file:
                file.truncate(num_bytes)
        return path

    def evict(self, num_bytes: float = math.inf) -> int:
        """Remove the least recently used files until so many bytes are free; return how many are."""
        num_freed = 0
        for path, status in sorted(self._files(), key=lambda file: file[1].st_mtime_ns):
            if num_freed >= num_bytes:
                break
            with suppress(TimeoutError), self.lock(path.stem).acquire(timeout=0):  # else it is being downloaded
                if _remove_unless_held(path):
                    num_freed += status.st_size
                    self.num_evicted += 1
        return num_freed

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Yield the regular files of the cache; skip links, folders, and files with other names."""
        for name, suffix in _SUFFIXES.items():
            with suppress(FileNotFoundError, NotADirectoryError), os.scandir(self.folder / name) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        if re.fullmatch(f"[0-9a-f]{{64}}{suffix}", entry.name) and stat.S_ISREG(status.st_mode):
                            yield Path(entry.path), status


def hold(path: Path) -> int | None:
    """Keep the cache from removing a file until the returned descriptor is closed; None if it is not there."""
    with suppress(OSError):
        descriptor = descriptor_of_regular(path)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        return descriptor
    return None


def _remove_unless_held(path: Path) -> bool:
    with suppress(FileNotFoundError, BlockingIOError), open_regular(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
        return True
    return False


def mark_used(path: Path) -> None:
    """Record that a file is used now."""
    with suppress(OSError):  # a read-only cache is still readable
        now = time.time_ns()
        os.utime(path, ns=(now, now))
