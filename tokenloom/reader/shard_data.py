"""One open file of a split: a shard with its document offsets, or the mask beside one."""

from __future__ import annotations

import fcntl
import os
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tokenloom.errors import FormatError
from tokenloom.storage.formats.arrays import TokenDtype, UInt64s
from tokenloom.storage.formats.manifest import MASK, ShardEntry
from tokenloom.storage.formats.shard import ShardHeader, check_file, checked_offsets, map_file
from tokenloom.storage.stores.local_files import descriptor_of_regular, file_sha256, open_regular
from tokenloom.storage.versions.published import check_header

if TYPE_CHECKING:
    from pathlib import Path

    from tokenloom.storage.cache.partial_shard import PartialShard
    from tokenloom.storage.packing.base import ShardPlan


WARM_READS = 4  # blocks of a file, all found in the system's cache: then the others are taken to be there, too


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

    def __getitem__(self, part: slice[int, int, None]) -> bytes:
        data = os.pread(self.fd, part.stop - part.start, self._start + part.start)
        if len(data) != part.stop - part.start:
            raise FormatError(f"{self._path}: the file was cut short while it was read; restore it")
        return data


class OpenOptions(NamedTuple):
    """How the files of a split are opened; TokenDataset documents the first three."""

    max_open_shards: int
    verify: str
    access: str
    dtype: TokenDtype  # of the tokens of each shard
    reads_offsets: bool  # whether samples depend on the document offsets


class OpenFile:
    """One open file of a split, whose `bytes` hold an item for each token of a shard. Views of them keep its map.

    Args:
        entry: the shard, or that of the mask, as the manifest lists it.
        path: the file.
        options: how it is opened.
        blocks: its blocks, if it is still being downloaded; `path` is ignored then.
    """

    suffix: str
    #: where `bytes` begin in the file
    first_byte = 0

    def __init__(self, entry: ShardEntry, path: Path, options: OpenOptions, blocks: PartialShard | None = None) -> None:
        self._entry, self._options = entry, options
        self._file: FileBytes | None = None  # for reads ahead, and locked in the cache while it is held
        self._is_held = False
        self._epoch = 0
        #: the blocks that are read ahead in this epoch, each once
        self.claimed: set[int] = set()
        self._warm_reads = 0  # blocks of this epoch that were found in the system's cache; -1 once one was not
        self._most_blocks: int | None = None  # that may be read in this epoch
        #: its blocks while some may be missing, else None
        self.partial = blocks
        self.path, self.place = (blocks.path, blocks.place) if blocks else (path, str(path))
        #: those that are missing are downloaded on access
        self.bytes: TokenBytes = self._open(path, options.verify, blocks)

    def _open(self, path: Path, verify: str, blocks: PartialShard | None) -> TokenBytes:
        """Open a complete file, or its blocks; raises OSError, FormatError."""
        raise NotImplementedError

    def check_download(self) -> bool:
        """Test whether all bytes are here; of a copy that can't be opened, the blocks are read on."""
        if self.partial and self.partial.is_complete():
            with suppress(OSError, FormatError):  # already removed, say; its blocks stay readable
                path = self.partial.path
                self.bytes = self._open(path, "open", None)
                self.path, self.place, self.partial = path, str(path), None
        return self.partial is None

    def hold(self, *, is_used: bool) -> None:
        """Keep the cache from removing the file while it is used; closing the descriptor before ends its lock."""
        if is_used != self._is_held and not self.partial:
            with suppress(OSError):  # already removed
                file = FileBytes(self.path, self.first_byte)
                if is_used:
                    fcntl.flock(file.fd, fcntl.LOCK_SH)
                self._file, self._is_held = file, is_used

    def is_cold(self, epoch: int) -> bool:
        """Test whether blocks may have to be read ahead in an epoch, of a file that is complete and not in memory."""
        if epoch != self._epoch:  # since the last one, the system may have evicted it
            # Of a file that was in memory, a few blocks show whether it still is.
            self._most_blocks = WARM_READS if self._warm_reads >= WARM_READS else None
            self._epoch, self.claimed, self._warm_reads = epoch, set(), 0
        most = self._most_blocks  # a read may change it
        return not (self.partial or self._warm_reads >= WARM_READS or (most is not None and len(self.claimed) >= most))

    def read_ahead(self, start: int, end: int) -> int:
        """Read token bytes [start, end) into the system's cache if possible; return how many came from the disk."""
        with suppress(OSError):  # the file was removed while its map is in use, or no file descriptor is left
            file = self._file or FileBytes(self.path, self.first_byte)
            self._file = self._file or file  # `hold` may have opened it since
            start, end = self.first_byte + start, min(self.first_byte + end, os.fstat(file.fd).st_size)
            if self._warm_reads >= 0:  # asking for a block that is not there begins to read it, in small parts
                with suppress(OSError, AttributeError):  # it is not; or NFS or macOS, which can't tell
                    for place in (start, end - 1):
                        os.preadv(file.fd, [bytearray(1)], place, os.RWF_NOWAIT)
                    self._warm_reads += 1
                    return 0
                self._warm_reads, self._most_blocks = -1, None
            return len(os.pread(file.fd, end - start, start))
        return 0


class OpenMask(OpenFile):
    """The open mask of a shard: `bytes` are the classes of its tokens; OpenFile documents the arguments."""

    suffix = MASK

    def _open(self, path: Path, verify: str, blocks: PartialShard | None) -> TokenBytes:
        if blocks:
            return blocks
        listed = self._entry.files[MASK]
        with open_regular(path) as file:
            file.read(1)  # else a fault in the map of a cold file would read megabytes around its start
            length = os.fstat(file.fileno()).st_size
            if length != listed["bytes"] or (verify == "full" and file_sha256(file) != listed["sha256"]):
                raise FormatError(
                    f"{path}: not the mask that the manifest lists; it is damaged or cut short: restore it"
                )
            # With "pread", keep no map: a truncated file would raise a signal, or read as zeros.
            return map_file(file, path) if length and self._options.access != "pread" else FileBytes(path, 0)


class OpenShard(OpenFile):
    """One open shard: its token bytes, and its document offsets; OpenFile documents the arguments."""

    suffix = ".tok"
    header: ShardHeader
    #: its samples under a packing, once they are planned
    plan: ShardPlan | None = None
    _offsets: UInt64s | None = None

    def _open(self, path: Path, verify: str, blocks: PartialShard | None) -> TokenBytes:
        data: TokenBytes
        if blocks:
            header, data = blocks.shard_header(), blocks
        else:
            with open_regular(path) as file:
                header = check_file(file, str(path), verify)
                start = header.tokens_start
                data = FileBytes(path, start) if self._options.access == "pread" else map_file(file, path)[start:]
        check_header(header, self._entry, self.place)
        if header.token_bytes != self._options.dtype.itemsize:
            raise FormatError(f"{self.place}: not the shard that the manifest lists; restore it")
        self.header, self.first_byte = header, header.tokens_start
        # Verified now, while a damaged copy can still be downloaded again.
        self._offsets = self._read_offsets(data) if self._options.reads_offsets else None
        return data

    def _read_offsets(self, data: TokenBytes) -> UInt64s:
        if self.partial:  # without waiting for all of the shard
            return checked_offsets(self.partial.offsets_bytes(), self.header, self.place)
        first = self.header.tokens_start
        offsets = data[self.header.offsets_start - first : self.header.file_bytes - first]
        return checked_offsets(offsets, self.header, self.place)

    @property
    def document_offsets(self) -> UInt64s:
        """(num_documents + 1,) uint64; the first use verifies their checksum."""
        if self._offsets is None:
            self._offsets = self._read_offsets(self.bytes)
        return self._offsets
