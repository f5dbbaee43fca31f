"""One open file of a split: a shard with its document offsets and its samples, or the mask beside one."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import FormatError
from tokenloom.reader.shards.disk_reads import CachedBlocks
from tokenloom.reader.shards.file_bytes import FileBytes, OpenFile, TokenBytes
from tokenloom.storage.formats.shard import Shard, checked_header, checked_offsets, map_file, open_shard
from tokenloom.storage.formats.shard_entries import FileEntry
from tokenloom.storage.packing.base import ShardPlan
from tokenloom.storage.packing.packings import packing_named, plan_shard
from tokenloom.storage.stores.local_files import file_sha256, open_regular

if TYPE_CHECKING:
    from tokenloom.storage.cache.partial_shard import PartialShard


class OpenData(ABC):
    """One open file of a split, whose `bytes` hold an item for each token of a shard. Views of them keep its map.

    Args:
        path: the file.
        verify, access: as in TokenDataset.
        blocks: its blocks, if it is still being downloaded; `path` is ignored then.
    """

    def __init__(self, path: Path, verify: str, access: str, blocks: PartialShard | None) -> None:
        # With "pread", keep no map: a truncated file would raise a signal, or read as zeros.
        self._is_mapped = access != "pread"
        self._file: OpenFile | None = None
        self.cached_blocks = CachedBlocks()
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
        """Return the bytes of a complete file; raises OSError, FormatError."""

    @abstractmethod
    def prepare(self) -> None:
        """Do what the first use would wait for."""

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """The length of the file."""

    @property
    def first_byte(self) -> int:
        """Where `bytes` begin in the file."""
        return 0

    def check_download(self) -> bool:
        """Return whether all bytes are here; raise FormatError if they are not those that the manifest lists."""
        if self.partial and self.partial.is_complete():
            with suppress(OSError, FormatError):  # already removed, say; its blocks stay readable
                path = self.partial.complete_path
                self.bytes = self._open_whole(path, "open")
                self.path, self.place, self.partial = path, str(path), None
        return self.partial is None

    def claim_block(self, block: int) -> bool:
        """Return whether a block is yet to be read into the system's cache; the caller reads it."""
        return not self.partial and self.cached_blocks.claim(block)

    def read_ahead(self, start: int, end: int) -> int:
        """Read token bytes [start, end) into the system's cache if possible; return how many came from the disk."""
        with suppress(OSError):  # the file was removed while its map is in use, or no file descriptor is left
            self._file = file = self._file or OpenFile(self.path)
            return self.cached_blocks.read(file.fd, self.first_byte + start, end - start)
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

    def prepare(self) -> None:
        """Do nothing."""

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
            return FileBytes(path, self.header.tokens_start)
        self._shard = open_shard(path, verify)
        self.header = self._shard.header
        return self._shard.tokens.data.cast("B")

    @property
    def num_bytes(self) -> int:
        """See OpenData."""
        return self.header.file_bytes

    @property
    def first_byte(self) -> int:
        """See OpenData."""
        return self.header.tokens_start

    def prepare(self) -> None:
        """Plan its samples."""
        _ = self.plan

    @property
    def document_offsets(self) -> NDArray[np.uint64]:
        """(num_documents + 1,) uint64; the first use verifies their checksum."""
        if self._offsets is None and self._shard is None:
            first, header = self.header.tokens_start, self.header
            data = self.bytes[header.offsets_start - first : header.file_bytes - first]
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
