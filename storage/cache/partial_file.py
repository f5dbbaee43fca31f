"""The file of a shard that is still being downloaded, and the map of its blocks that are there.

    partial/<sha256>.part   as long as the shard; begins with its header, so it opens like a complete one
            <sha256>.map    a byte for the whole file, then a byte for each block

All processes of a machine map both files. The byte of a block is set once its bytes are verified and written. Locks on
single bytes of the map say who uses the file (the first byte, shared) and who downloads a block. They are POSIX locks:
the kernel releases those of a killed process, and a process loses all its locks on a file when it closes one of its
descriptors. So a process opens a map once, for all its threads and caches.

Nothing is synced. Whoever opens a file that nobody uses trusts no block of it: each is verified again before its use.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import resource
import sys
import threading
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from tokenloom.storage.formats.blocks import ShardBlocks

FILLING, COMPLETE, DAMAGED = range(3)  # of the first byte
_ABSENT, _HERE, _UNPROVEN = range(3)  # of a block's byte
_DESCRIPTORS = 3  # of a partial file: its own, its map's, and the one that a memory map keeps

_opened: dict[Path, PartialFile] = {}  # those of this process; guarded by the cache's lock for room
_holders: weakref.WeakSet[Holder] = weakref.WeakSet()  # readers of this process whose files nobody completes
_inherited: list[object] = []  # never closed: see above


def _after_fork() -> None:
    global _opened
    _inherited.append(_opened)
    _opened = {}


os.register_at_fork(after_in_child=_after_fork)


def map_path(path: Path) -> Path:
    """Return the path of the map that belongs to a partial file."""
    return path.with_suffix(".map")


def max_partial_files() -> int:
    """Return how many partial files a process may use: they take at most a quarter of its file descriptors."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**20 if limit == resource.RLIM_INFINITY else max(1, limit // (4 * _DESCRIPTORS))


def close_unused(folder: Path) -> None:
    """Close the partial files in a folder that no shard uses any more; the caller holds the cache's lock for room."""
    for path in [each for each in list(_opened) if each.parent == folder]:
        if sys.getrefcount(_opened[path]) == 2:  # _opened and the argument of getrefcount
            del _opened[path]


class Holder(Protocol):
    """A reader that keeps partial files open which nobody completes."""

    def close_all(self) -> bool:
        """Close what is open and not being read right now; return whether anything was."""


def add_holder(holder: Holder) -> None:
    """Close what a reader holds whenever a cache of this process needs the space."""
    _holders.add(holder)


def close_holders() -> bool:
    """Close what the readers of this process hold; return whether anything was open."""
    return sum(holder.close_all() for holder in list(_holders)) > 0


def create_partial(path: Path, blocks: ShardBlocks) -> None:
    """Create the partial file of a shard and its map; the caller holds the cache's lock for room."""
    with path.open("wb") as file:
        file.write(blocks.header)
        file.truncate(blocks.num_bytes)
    with map_path(path).open("wb") as file:
        file.write(bytes(1 + blocks.num_blocks))  # no hole: on a full disk, a write to its memory would be a signal


def open_partial(path: Path, blocks: ShardBlocks) -> PartialFile | None:
    """Return the partial file of a shard, one object for each process; None if there is none that fits `blocks`.

    The caller holds the cache's lock for room.
    """
    if path in _opened and not _opened[path].is_open:  # another process has ended it, or somebody removed it
        del _opened[path]
    if path not in _opened:
        lengths = [each.stat().st_size for each in (path, map_path(path)) if each.exists()]
        if lengths != [blocks.num_bytes, 1 + blocks.num_blocks]:
            return None
        _opened[path] = PartialFile(path, blocks)
    return _opened[path]


def is_in_use(path: Path) -> bool:
    """Return whether a process uses a partial file; the caller holds the cache's lock for room."""
    if path in _opened:
        return True
    try:
        with map_path(path).open("r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


class PartialFile:
    """A partial file and its map; `open_partial` makes it. Several threads may use it.

    Args:
        path: the file; it and its map exist.
        blocks: the checksums of its blocks.
    """

    def __init__(self, path: Path, blocks: ShardBlocks) -> None:
        self.path, self.blocks = path, blocks
        self._lock = threading.Lock()
        self._claimed: set[int] = set()  # by the threads of this process
        self._locks, self._data = _descriptor(self, map_path(path)), _descriptor(self, path)
        self._map = mmap.mmap(self._locks, 1 + blocks.num_blocks)
        if self._try_lock(0):  # nobody uses it: it may be left from before a power failure
            os.pwrite(self._data, blocks.header, 0)
            self._map[1:] = self._map[1:].replace(bytes([_HERE]), bytes([_UNPROVEN]))
        fcntl.lockf(self._locks, fcntl.LOCK_SH, 1, 0)

    @property
    def status(self) -> int:
        """FILLING, COMPLETE or DAMAGED."""
        return self._map[0]

    @property
    def is_open(self) -> bool:
        """Whether it still waits for blocks, and nobody has removed it."""
        try:
            return self.status == FILLING and os.path.samestat(os.fstat(self._data), self.path.stat())
        except FileNotFoundError:
            return False

    def end(self, status: int) -> None:
        """Set the status for all processes that use the file; the caller holds the cache's lock for room."""
        self._map[0] = status
        map_path(self.path).unlink(missing_ok=True)
        _opened.pop(self.path, None)

    def missing(self, blocks: Iterable[int]) -> list[int]:
        """Return which of these blocks can't be read yet."""
        return [block for block in blocks if self._map[1 + block] != _HERE]

    def claim(self, blocks: Iterable[int]) -> list[int]:
        """Return those missing blocks that the caller must download, then `release`; others download the rest."""
        claimed = []
        with self._lock:
            for block in self.missing(blocks):
                if block in self._claimed or not self._try_lock(1 + block):
                    continue
                if self.missing([block]):
                    self._claimed.add(block)
                    claimed.append(block)
                else:  # another process has just downloaded it
                    self._unlock(1 + block)
        return claimed

    def release(self, blocks: Iterable[int]) -> None:
        """Give up the claims to blocks, whether they are there or not."""
        with self._lock:
            for block in blocks:
                self._claimed.discard(block)
                self._unlock(1 + block)

    def is_proven(self, block: int) -> bool:
        """Return whether a claimed block is there after all, left by an earlier process and undamaged."""
        if self._map[1 + block] != _UNPROVEN:
            return False
        start, end = self.blocks.bounds(block, block + 1)
        if not self.blocks.matches(block, os.pread(self._data, end - start, start)):
            return False
        self._map[1 + block] = _HERE
        return True

    def put(self, block: int, data: memoryview) -> bool:
        """Write a claimed block if its bytes are right; return whether they are."""
        if not self.blocks.matches(block, data):
            return False
        position, _ = self.blocks.bounds(block, block + 1)
        while len(data):
            num_written = os.pwrite(self._data, data, position)
            data, position = data[num_written:], position + num_written
        self._map[1 + block] = _HERE
        return True

    def _try_lock(self, byte: int) -> bool:
        try:
            fcntl.lockf(self._locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except (BlockingIOError, PermissionError):  # EAGAIN or EACCES
            return False
        return True

    def _unlock(self, byte: int) -> None:
        fcntl.lockf(self._locks, fcntl.LOCK_UN, 1, byte)


def _descriptor(owner: object, path: Path) -> int:
    """Return a file descriptor that is closed with its owner."""
    descriptor = os.open(path, os.O_RDWR)
    weakref.finalize(owner, os.close, descriptor)
    return descriptor
