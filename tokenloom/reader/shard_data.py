"""One open file of a split: a shard with its document offsets and its samples, or the mask beside one."""

from __future__ import annotations

import fcntl
import os
import resource
import time
import weakref
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import FormatError
from tokenloom.storage.formats.manifest import FileEntry
from tokenloom.storage.formats.shard import Shard, checked_header, checked_offsets, map_file, open_shard
from tokenloom.storage.packing.base import ShardPlan
from tokenloom.storage.packing.packings import packing_named, plan_shard
from tokenloom.storage.stores.local_files import descriptor_of_regular, file_sha256, open_regular

if TYPE_CHECKING:
    from pathlib import Path

    from tokenloom.storage.cache.partial_shard import PartialShard


_WARM_READS = 4  # in a row: then the whole file is taken to be in the system's cache
_WARM_SECONDS = 1e-3  # at most; the system does not count what a network file system reads


class TokenBytes(Protocol):
    """The bytes of a shard's tokens: in a map, in a file, or in a PartialShard."""

    def __getitem__(self, part: slice[int, int, None]) -> memoryview | bytes: ...


class FileBytes:
    """Token bytes that are read on access, so that a truncated file raises an error instead of a signal.

    The file, whose tokens begin at `start`, stays open until the last reference to this object is gone.
    """

    def __init__(self, path: Path, start: int) -> None:
        self._path, self._start, self.fd = path, start, descriptor_of_regular(path)
        weakref.finalize(self, os.close, self.fd)

    def lock(self) -> None:
        """Keep a cache from removing the file while this object lives; raises OSError."""
        fcntl.flock(self.fd, fcntl.LOCK_SH)

    def __getitem__(self, part: slice[int, int, None]) -> bytes:
        data = os.pread(self.fd, part.stop - part.start, self._start + part.start)
        if len(data) != part.stop - part.start:
            raise FormatError(f"{self._path}: the file was cut short while it was read; restore it")
        return data


def disk_waits() -> tuple[int, int]:
    """Count the pages of maps that this thread has waited for, and the blocks of 512 bytes that it has read."""
    usage = resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF))  # macOS: of the process
    return usage.ru_majflt, usage.ru_inblock


class OpenData(ABC):
    """One open file of a split, whose `bytes` hold an item for each token of a shard. Views of them keep its map.

    Args:
        path: the file.
        verify, access: as in TokenDataset.
        blocks: its blocks, if it is still being downloaded; `path` is ignored then.
    """

    #: where `bytes` begin in the file
    first_byte = 0

    def __init__(self, path: Path, verify: str, access: str, blocks: PartialShard | None) -> None:
        # With "pread", keep no map: a truncated file would raise a signal, or read as zeros.
        self._is_mapped = access != "pread"
        self._file: FileBytes | None = None
        self._epoch = 0
        self._cached: set[int] = set()  # blocks that were read into the system's cache, or found there, in this epoch
        self._warm_reads = 0  # the last reads, which did not wait for the disk
        self._most_blocks: int | None = None  # that may be read in this epoch
        self._held: FileBytes | None = None  # locked in the cache
        #: its blocks while some may be missing, else None
        self.partial = blocks
        if blocks is None:
            self.path, self.place = path, str(path)
        else:
            self.path, self.place = blocks.path, blocks.place
        #: those that are missing are downloaded on access
        self.bytes = self._open_whole(path, verify) if blocks is None else blocks

    @abstractmethod
    def _open_whole(self, path: Path, verify: str) -> TokenBytes:
        """Open a complete file; raises OSError, FormatError."""

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """The length of the file."""

    def check_download(self) -> bool:
        """Test whether all bytes are here; of a copy that can't be opened, the blocks are read on."""
        if self.partial and self.partial.is_complete():
            with suppress(OSError, FormatError):  # already removed, say; its blocks stay readable
                path = self.partial.path
                self.bytes = self._open_whole(path, "open")
                self.path, self.place, self.partial = path, str(path), None
        return self.partial is None

    def hold(self, *, is_used: bool) -> None:
        """Keep the cache from removing the file while it is used."""
        if not is_used:
            self._held = None
        elif self._held is None and not self.partial:
            with suppress(OSError):  # already removed
                self._held = FileBytes(self.path, 0)
                self._held.lock()

    def claim_block(self, block: int, epoch: int) -> bool:
        """Claim a block for the caller to read ahead; False if it was read in this epoch, or the shard is in memory."""
        if epoch != self._epoch:  # since the last one, the system may have evicted it
            # Of a shard that was in memory, a few blocks show whether it still is.
            self._most_blocks = _WARM_READS if self._warm_reads >= _WARM_READS else None
            self._epoch, self._cached, self._warm_reads = epoch, set(), 0
        if self.partial or self._warm_reads >= _WARM_READS or block in self._cached:
            return False
        if self._most_blocks is not None and len(self._cached) >= self._most_blocks:
            return False
        self._cached.add(block)
        return True

    def read_ahead(self, start: int, end: int) -> int:
        """Read token bytes [start, end) into the system's cache if possible; return how many came from the disk."""
        with suppress(OSError):  # the file was removed while its map is in use, or no file descriptor is left
            self._file = file = self._file or FileBytes(self.path, self.first_byte)
            before, begin = disk_waits(), time.perf_counter()
            num_bytes = len(os.pread(file.fd, end - start, self.first_byte + start))
            is_warm = disk_waits() == before and time.perf_counter() - begin < _WARM_SECONDS
            if is_warm:
                self._warm_reads += 1
                return 0
            self._warm_reads, self._most_blocks = 0, None
            return num_bytes
        return 0


class OpenMask(OpenData):
    """The open mask of a shard: `bytes` are the classes of its tokens.

    Args:
        entry: the mask as the manifest lists it.
        path, verify, access, blocks: as in OpenData.
    """

    def __init__(
        self, entry: FileEntry, path: Path, verify: str, access: str, blocks: PartialShard | None = None
    ) -> None:
        self._entry = entry
        super().__init__(path, verify, access, blocks)

    def _open_whole(self, path: Path, verify: str) -> TokenBytes:
        with open_regular(path) as file:
            file.read(1)  # else a fault in the map of a cold file would read megabytes around its start
            length = os.fstat(file.fileno()).st_size
            if length != self._entry.bytes or (verify == "full" and file_sha256(file) != self._entry.sha256):
                raise FormatError(
                    f"{path}: not the mask that the manifest lists; it is damaged or cut short: restore it"
                )
            if self._is_mapped and length:
                return map_file(file, path)
        return FileBytes(path, 0)

    @property
    def num_bytes(self) -> int:
        """See OpenData."""
        return self._entry.bytes


class OpenShard(OpenData):
    """One open shard: its token bytes, its document offsets, and its samples under a packing.

    Args:
        packing, seq_len: what makes its samples.
        path, verify, access, blocks: as in OpenData.
    """

    def __init__(
        self, path: Path, verify: str, access: str, packing: str, seq_len: int, blocks: PartialShard | None = None
    ) -> None:
        self._packing, self._seq_len = packing, seq_len
        self._shard: Shard | None = None
        self._offsets: NDArray[np.uint64] | None = None
        self._plan: ShardPlan | None = None
        if blocks is not None:
            self.header = blocks.shard_header()
        super().__init__(path, verify, access, blocks)

    def _open_whole(self, path: Path, verify: str) -> TokenBytes:
        self._offsets = self._shard = None
        if not self._is_mapped:
            self.header = checked_header(path, verify)
            self.first_byte = self.header.tokens_start
            return FileBytes(path, self.first_byte)
        self._shard = open_shard(path, verify)
        self.header = self._shard.header
        self.first_byte = self.header.tokens_start
        return self._shard.tokens.data.cast("B")

    @property
    def num_bytes(self) -> int:
        """See OpenData."""
        return self.header.file_bytes

    @property
    def document_offsets(self) -> NDArray[np.uint64]:
        """(num_documents + 1,) uint64; the first use verifies their checksum."""
        if self._offsets is None and self._shard is None:
            first, header = self.header.tokens_start, self.header
            if self.partial:  # without waiting for all of the shard
                data = self.partial.offsets_bytes()
            else:
                data = bytes(self.bytes[header.offsets_start - first : header.file_bytes - first])
            self._offsets = checked_offsets(data, header, self.place)
        elif self._offsets is None and self._shard is not None:
            self._shard.verify_offsets()
            self._offsets = self._shard.document_offsets
        assert self._offsets is not None  # just read
        return self._offsets

    @property
    def plan(self) -> ShardPlan:
        """The samples of the shard, computed on first use."""
        if self._plan is None:
            offsets = self.document_offsets if packing_named(self._packing).follows_documents else None
            self._plan = plan_shard(self._packing, self._seq_len, self.header.num_tokens, offsets)
        return self._plan
