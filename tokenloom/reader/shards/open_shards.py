"""The shards of a split, mapped when first touched, the least recently used dropped.

A view of a dropped shard stays valid: its map is closed when the last view is gone. An open map holds a file
descriptor, so a process that is out of them drops half of its shards and tries again.
"""

from __future__ import annotations

import errno
import os
import resource
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.formats.shard import Shard, checked_offsets, open_shard
from tokenloom.storage.packing.packing import ShardPlan, plan_shard


class Bytes(Protocol):
    """The token bytes of a shard; a slice of it is a buffer."""

    def __getitem__(self, part: slice) -> Any: ...


class _File:
    """A file open for reading, closed when nobody has it any more."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.fd)


class _FileBytes:
    """Token bytes read when they are asked for, so that a file that was cut short is an error and no signal."""

    def __init__(self, path: Path, start: int) -> None:
        self._file = _File(path)
        self._path, self._start = path, start

    def __getitem__(self, part: slice) -> bytes:
        wanted = part.stop - part.start
        data = os.pread(self._file.fd, wanted, self._start + part.start)
        if len(data) != wanted:
            raise FormatError(f"{self._path}: it was cut short while it was read; restore it")
        return data


class OpenShard:
    """One shard in use: its token bytes, its document offsets, its samples under a packing."""

    def __init__(self, path: Path, verify: str, access: str, packing: str, seq_len: int) -> None:
        shard = open_shard(path, verify)
        self.header, self.path = shard.header, path
        self._packing, self._seq_len = packing, seq_len
        # Without a map nothing of it may stay: a file that was cut short would be a signal, or zeros.
        self._shard: Shard | None = shard if access == "mmap" else None
        self._file: _File | None = None
        self.bytes: Bytes = (
            shard.tokens.data.cast("B") if access == "mmap" else _FileBytes(path, shard.header.tokens_start)
        )
        self._offsets: NDArray[np.uint64] | None = None
        self._plan: ShardPlan | None = None

    def read_ahead(self, start: int, end: int) -> None:
        """Read token bytes [start, end) into the system's cache, without Python's lock, if that can be done."""
        with suppress(OSError):  # removed from the cache while its map is in use, or no file descriptor is left
            self._file = file = self._file or _File(self.path)
            os.pread(file.fd, end - start, self.header.tokens_start + start)

    @property
    def document_offsets(self) -> NDArray[np.uint64]:
        """(num_documents + 1,) uint64; their checksum is verified when they are first used."""
        if self._offsets is None and self._shard is None:
            first, header = self.header.tokens_start, self.header
            data = self.bytes[header.offsets_start - first : header.file_bytes - first]
            self._offsets = checked_offsets(data, header, str(self.path))
        elif self._offsets is None and self._shard is not None:
            self._shard.verify_offsets()
            self._offsets = self._shard.document_offsets
        assert self._offsets is not None  # just read
        return self._offsets

    @property
    def plan(self) -> ShardPlan:
        """The samples of the shard; made when first used."""
        if self._plan is None:
            offsets = None if self._packing == "concat" else self.document_offsets
            self._plan = plan_shard(self._packing, self._seq_len, self.header.num_tokens, offsets)
        return self._plan


class OpenShards:
    """The open shards of a split, by index; several threads may use it.

    Args:
        open_one: opens the shard of an index.
        max_open: shards that stay open, at least 1. They may hold two file descriptors each, and no more than two
            thirds of those that the process may have.
    """

    def __init__(self, open_one: Callable[[int], OpenShard], max_open: int) -> None:
        self._open_one = open_one
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._max_open = max_open if files == resource.RLIM_INFINITY else max(1, min(max_open, files // 3))
        # No OrderedDict: what it drops may run Python code, and another thread, before it is done.
        self._open: dict[int, OpenShard] = {}  # the one used last stands last
        self._coming: dict[int, Future[OpenShard]] = {}
        self._pid = os.getpid()
        #: token bytes of the shards that are open; what is not there is opened by `__getitem__`
        self.bytes: dict[int, Bytes] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __getitem__(self, index: int) -> OpenShard:
        # Each step is one operation of a dict, so that no lock is needed, which a fork could leave locked.
        shard = self._open.pop(index, None) or self._opened(index)
        self._make_room()
        self.bytes[index] = shard.bytes  # first: who drops a shard that is open drops its bytes too
        self._open[index] = shard
        return shard

    @property
    def room_ahead(self) -> int:
        """How many more shards may be opened ahead of use: half of all."""
        return max(0, self._max_open // 2 - len(self._coming))

    @property
    def num_bytes(self) -> int:
        """Bytes of the files that are open."""
        return sum(shard.header.file_bytes for shard in list(self._open.values()))

    def read_ahead(self, index: int, start: int, end: int) -> None:
        """Read token bytes of a shard ahead if it is open: opening it could wait for the very thread that asks."""
        if shard := self._open.get(index):
            shard.read_ahead(start, end)

    def touch(self, indices: Iterable[int]) -> None:
        """Note that shards will be used: others are dropped before them."""
        for index in indices:
            if (shard := self._open.pop(index, None)) is not None:
                self._open[index] = shard

    def forget_coming(self) -> None:
        """Drop what was opened ahead and not used yet."""
        self._coming = {}

    def drop(self, index: int) -> None:
        """Forget a shard, so that its file is opened again when it is used."""
        self.bytes.pop(index, None)
        self._open.pop(index, None)

    def is_known(self, index: int) -> bool:
        """Return whether a shard is open, or on its way."""
        return index in self._open or index in self._coming

    def prepare(self, indices: Iterable[int], pool: ThreadPoolExecutor) -> None:
        """Open shards and plan their samples on the threads of `pool`; an error is raised where the shard is used."""
        for index in indices:
            if not self.is_known(index):
                self._make_room()
                self._coming[index] = pool.submit(self._planned, index)

    def _planned(self, index: int) -> OpenShard:
        shard = self._open_one(index)
        _ = shard.plan
        return shard

    def _opened(self, index: int) -> OpenShard:
        if self._pid != os.getpid():  # the threads that were to finish these stayed in the parent
            self._coming, self._pid = {}, os.getpid()
        if coming := self._coming.pop(index, None):
            # Given up with the loader that asked for it; or it failed, which may be over.
            with suppress(CancelledError, StoreError, FormatError):
                return coming.result()
        try:
            return self._open_one(index)
        except StoreError as error:
            cause = error.__cause__
            if not (isinstance(cause, OSError) and cause.errno == errno.EMFILE):
                raise
            ahead, self._coming = list(self._coming.values()), {}
            wait([future for future in ahead if not future.cancel()])
            ahead.clear()
            for _ in range(len(self._open) // 2):
                self._drop_oldest()
            return self._open_one(index)

    def _make_room(self) -> None:
        """Drop shards until one more may be open, or on its way."""
        while self._open and len(self._open) + len(self._coming) >= self._max_open:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        with suppress(StopIteration, RuntimeError):  # another thread has just emptied or changed it
            index = next(iter(self._open))
            self._open.pop(index, None)
            self.bytes.pop(index, None)
