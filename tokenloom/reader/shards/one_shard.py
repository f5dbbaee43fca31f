"""One open shard: its token bytes, its document offsets and its samples. Views of its bytes keep its map."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import FormatError
from tokenloom.reader.shards.disk_reads import CachedBlocks
from tokenloom.reader.shards.file_bytes import FileBytes, OpenFile, TokenBytes
from tokenloom.storage.formats.shard import Shard, checked_offsets, open_shard
from tokenloom.storage.packing.base import ShardPlan
from tokenloom.storage.packing.packings import PACKINGS, plan_shard

if TYPE_CHECKING:
    from tokenloom.storage.cache.partial_shard import PartialShard


class OpenShard:
    """One open shard: its token bytes, its document offsets, and its samples under a packing.

    Args:
        path: its file.
        verify, access: as in TokenDataset.
        packing, seq_len: what makes its samples.
        blocks: its blocks, if it is still being downloaded; `path` is ignored then.
    """

    def __init__(
        self, path: Path, verify: str, access: str, packing: str, seq_len: int, blocks: PartialShard | None = None
    ) -> None:
        self._packing, self._seq_len = packing, seq_len
        # With "pread", keep no map: a truncated file would raise a signal, or read as zeros.
        self._is_mapped = access != "pread"
        self._shard: Shard | None = None
        self._file: OpenFile | None = None
        self.cached_blocks = CachedBlocks()
        self._offsets: NDArray[np.uint64] | None = None
        self._plan: ShardPlan | None = None
        #: its blocks while some may be missing, else None
        self.partial = blocks
        if blocks is None:
            self._open_whole(path, verify)
        else:
            self.path, self.place, self.header = blocks.path, blocks.place, blocks.header
            #: its token bytes; those that are missing are downloaded on access
            self.bytes: TokenBytes = blocks

    def _open_whole(self, path: Path, verify: str) -> None:
        shard = open_shard(path, verify)
        self.path, self.place, self.header = path, str(path), shard.header
        self._shard = shard if self._is_mapped else None
        self.bytes = shard.tokens.data.cast("B") if self._is_mapped else FileBytes(path, shard.header.tokens_start)

    def check_download(self) -> bool:
        """Return whether all bytes are here; raise FormatError if they are not those that the manifest lists."""
        if self.partial and self.partial.is_complete():
            with suppress(OSError, FormatError):  # already removed, say; its blocks stay readable
                self._open_whole(self.partial.complete_path, "open")
                self._offsets = self.partial = None
        return self.partial is None

    def claim_block(self, block: int) -> bool:
        """Return whether a block is yet to be read into the system's cache; the caller reads it."""
        return not self.partial and self.cached_blocks.claim(block)

    def read_ahead(self, start: int, end: int) -> int:
        """Read token bytes [start, end) into the system's cache if possible; return how many came from the disk."""
        with suppress(OSError):  # the file was removed while its map is in use, or no file descriptor is left
            self._file = file = self._file or OpenFile(self.path)
            return self.cached_blocks.read(file.fd, self.header.tokens_start + start, end - start)
        return 0

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
            offsets = self.document_offsets if PACKINGS[self._packing].follows_documents else None
            self._plan = plan_shard(self._packing, self._seq_len, self.header.num_tokens, offsets)
        return self._plan
