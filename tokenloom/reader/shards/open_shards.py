"""The open shards of a split: a shard is mapped when it is first used, and the least recently used one is closed.

A view of a closed shard stays valid: its map is released with the last view. An open map holds a file descriptor, so a
process that runs out of them closes half of its shards and retries.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import FormatError, StoreError
from tokenloom.reader.shards.disk_reads import CachedBlocks
from tokenloom.reader.shards.file_bytes import FileBytes, OpenFile
from tokenloom.reader.shards.partial_bytes import PartialBytes, TokenBytes, describe_damage, fetch_all
from tokenloom.storage.cache.cache_settings import default_cache_folder
from tokenloom.storage.formats.arrays import Int64s
from tokenloom.storage.formats.shard import Shard, checked_offsets, open_shard
from tokenloom.storage.packing.plans import ShardPlan, plan_shard

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    from tokenloom.storage.cache.partial_shard import PartialShard


class OpenShard:
    """One open shard: its token bytes, its document offsets, and its samples under a packing.

    Args:
        path: its file.
        verify, access: as in TokenDataset.
        packing, seq_len: what makes its samples.
        blocks: its blocks, if it is still being downloaded.
        first_sample: the index in the split of its first sample.
    """

    def __init__(
        self,
        path: Path,
        verify: str,
        access: str,
        packing: str,
        seq_len: int,
        blocks: PartialShard | None = None,
        first_sample: int = 0,
    ) -> None:
        shard = open_shard(path, verify)
        self.header, self.path, self._first_sample = shard.header, path, first_sample
        self._packing, self._seq_len = packing, seq_len
        # With "pread", keep no map: a truncated file would raise a signal, or read as zeros.
        self._shard: Shard | None = shard if access != "pread" else None
        self._file: OpenFile | None = None
        tokens_start = shard.header.tokens_start
        self._whole: TokenBytes = shard.tokens.data.cast("B") if access != "pread" else FileBytes(path, tokens_start)
        #: its token bytes while some may be missing, else None
        self.partial = PartialBytes(blocks, tokens_start, self._whole) if blocks else None
        self.cached_blocks = CachedBlocks()
        self._offsets: NDArray[np.uint64] | None = None
        self._plan: ShardPlan | None = None

    @property
    def bytes(self) -> TokenBytes:
        """Its token bytes; those that are missing are downloaded on access."""
        return self.partial or self._whole

    def check_download(self) -> bool:
        """Return whether all bytes are here; raise FormatError if they are not those that the manifest lists."""
        if self.partial and self.partial.shard.is_damaged:
            raise FormatError(describe_damage(self.partial.shard, self._first_sample + self._served_samples()))
        if self.partial and self.partial.shard.is_complete:
            self.path, self.partial = self.partial.shard.complete_path, None
        return self.partial is None

    def _served_samples(self) -> Int64s:
        """Return the samples that were read while some bytes were missing, (n,), as numbers in the shard."""
        assert self.partial is not None
        row_offsets, starts, _ = self.plan.pieces(np.arange(len(self.plan)))
        is_served = np.isin(starts, np.array([*self.partial.served], np.int64) // self.header.token_bytes)
        return np.unique(np.repeat(np.arange(len(self.plan)), np.diff(row_offsets))[is_served])

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
        if self._offsets is None and self.partial:
            start = self.header.tokens_start
            self.partial.ensure(self.header.offsets_start - start, self.header.file_bytes - start)
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
        """The samples of the shard, computed on first use."""
        if self._plan is None and self._packing == "concat":
            self._plan = plan_shard(self._packing, self._seq_len, self.header.num_tokens)
        elif self._plan is None:
            from tokenloom.storage.packing.plan_file import kept_plan  # most readers need only "concat"

            folder, offsets = default_cache_folder(), self.document_offsets
            self._plan = kept_plan(folder, self._packing, self._seq_len, self.header, offsets)
        return self._plan


class OpenShards:
    """The open shards of a split, by index; several threads may use them.

    Args:
        open_one: opens the shard of an index.
        max_open: how many shards may stay open, at least 1. Each may hold two file descriptors; all of them hold at
            most two thirds of those that the process may have.
        in_cache: whether the files are in a cache, which removes the least recently used ones.
        only_blocks: whether shards are never downloaded as a whole, so that nothing is checked once one is closed.
    """

    def __init__(
        self,
        open_one: Callable[[int], OpenShard],
        max_open: int,
        *,
        in_cache: bool = False,
        only_blocks: bool = False,
    ) -> None:
        self._open_one, self._in_cache, self._only_blocks = open_one, in_cache, only_blocks
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._max_open = max_open if files == resource.RLIM_INFINITY else max(1, min(max_open, files // 3))
        # Not an OrderedDict: deleting an entry of it may run Python code, and another thread, halfway.
        self._open: dict[int, OpenShard] = {}  # the most recently used one last
        self._ahead: dict[int, Future[OpenShard]] = {}  # opened ahead of their first use
        self._partial: dict[int, OpenShard] = {}  # that were opened before all of their bytes were here
        self._pid = os.getpid()
        #: token bytes of the shards that are open and complete; `__getitem__` opens the others
        self.bytes: dict[int, TokenBytes] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __getitem__(self, index: int) -> OpenShard:
        self._notice_fork()
        # Each step is one operation of a dict, so it needs no lock, which a fork could leave locked.
        shard = self._open.pop(index, None) or self._partial.get(index) or self._take_or_open(index)
        self._make_room()
        if shard.partial:
            self._partial[index] = shard
        else:
            self.bytes[index] = shard.bytes  # first: closing an open shard removes its bytes too
        self._open[index] = shard
        return shard

    def _notice_fork(self) -> None:
        """Forget what belongs to the parent: threads that open shards, and downloads that may end with it."""
        if self._pid != os.getpid():
            self._ahead, self._pid = {}, os.getpid()
            for index in list(self._partial):
                self._partial.pop(index)
                self._open.pop(index, None)

    def fetch(self, pieces: Iterable[tuple[int, int, int]]) -> None:
        """Open the shards of pieces, (shard, start, end), and download what is missing of their bytes at once."""
        self._notice_fork()
        self.check_downloads()
        wanted, pieces = [], list(pieces)
        indices = {index for index, _, _ in pieces}
        if self._only_blocks and len(indices) > self._max_open:
            return  # each is opened and downloaded when it is copied
        for index in indices.difference(self._open):
            _ = self[index]  # may have to close others: keep no reference to them
        for index, start, end in pieces:
            if (shard := self._open.get(index)) and shard.partial:
                wanted.append((shard.partial, shard.partial.missing(start, end)))
        if wanted:
            fetch_all(wanted)

    def check_downloads(self) -> None:
        """Raise FormatError if a shard that was read before all of it was here turned out to be damaged."""
        for index, shard in list(self._partial.items()):
            if shard.check_download():
                self._partial.pop(index, None)
                if index in self._open:
                    self.bytes[index] = shard.bytes

    def bytes_of(self, index: int) -> TokenBytes:
        """Return the token bytes of a shard, which is opened if necessary."""
        return self.bytes.get(index) or self[index].bytes

    @property
    def room_ahead(self) -> int:
        """How many more shards may be opened ahead of use; at most half of the open ones."""
        return max(0, self._max_open // 2 - len(self._ahead))

    @property
    def num_bytes(self) -> int:
        """The total size of the open files, in bytes."""
        return sum(shard.header.file_bytes for shard in list(self._open.values()))

    def claim_block(self, index: int, block: int) -> bool:
        """See OpenShard; False for a shard that is not open."""
        shard = self._open.get(index)
        return shard is not None and shard.claim_block(block)

    def forget_blocks(self) -> None:
        """Forget which blocks of the open shards are in the system's cache, because it has evicted some of them."""
        for shard in list(self._open.values()):
            shard.cached_blocks.forget()

    def read_ahead(self, index: int, start: int, end: int) -> int:
        """Read token bytes of a shard ahead if it is open; opening it could mean waiting for the calling thread."""
        shard = self._open.get(index)
        return shard.read_ahead(start, end) if shard else 0

    def touch(self, indices: list[int], may_open: bool) -> None:
        """Mark shards as used, so that others are closed before them; open the rest if `may_open`, as many as fit.

        Errors are raised when a shard is used.
        """
        for index in indices:
            if (shard := self._open.pop(index, None)) is not None:
                self._open[index] = shard
        if self._in_cache:
            self._keep_in_cache(set(indices))
        for index in indices[: self._max_open if may_open else 0]:
            if not self.is_known(index):
                with suppress(StoreError, FormatError):
                    _ = self[index]

    def _keep_in_cache(self, used: set[int]) -> None:
        """Mark files in the cache as used; close other shards that it has removed, whose maps keep the disk space."""
        from tokenloom.storage.cache.cache_files import mark_used  # for remote stores only

        for index, shard in list(self._open.items()):
            if index in used:
                mark_used(shard.path)
            elif not shard.partial and not shard.path.exists():
                self.drop(index)

    def forget_ahead(self) -> None:
        """Forget the shards that were opened ahead and not used yet."""
        self._ahead = {}

    def close_all(self) -> bool:
        """Close all shards; return whether any was open. A thread that reads one keeps it open meanwhile."""
        had_any = bool(self._open or self._ahead)
        self._ahead = {}
        for known in (self.bytes, self._open, self._partial):
            known.clear()
        return had_any

    def drop(self, index: int) -> None:
        """Forget a shard, so that its next use opens the file again."""
        for known in (self.bytes, self._open, self._partial):
            known.pop(index, None)

    def is_open(self, index: int) -> bool:
        """Return whether a shard was used and not closed since."""
        return index in self._open

    def is_known(self, index: int) -> bool:
        """Return whether a shard is open or being opened."""
        return index in self._open or index in self._ahead

    def prepare(self, indices: Iterable[int], pool: ThreadPoolExecutor) -> None:
        """Open shards and compute their samples on the threads of `pool`; errors are raised when a shard is used."""
        for index in indices:
            if not self.is_known(index):
                self._make_room()
                self._ahead[index] = pool.submit(self._open_and_plan, index)

    def _open_and_plan(self, index: int) -> OpenShard:
        shard = self._open_one(index)
        _ = shard.plan
        return shard

    def _take_or_open(self, index: int) -> OpenShard:
        if future := self._ahead.pop(index, None):
            from concurrent.futures import CancelledError  # only a loader opens shards ahead

            # Cancelled with the loader that requested it; or failed, perhaps for a transient reason.
            with suppress(CancelledError, StoreError, FormatError):
                return future.result()
        try:
            return self._open_one(index)
        except StoreError as error:
            cause = error.__cause__
            if not (isinstance(cause, OSError) and cause.errno == errno.EMFILE):
                raise
            ahead, self._ahead = list(self._ahead.values()), {}
            for future in ahead:
                if not future.cancel():
                    future.exception()  # waits for it
            ahead.clear()
            for _ in range(len(self._open) // 2):
                self._drop_oldest()
            return self._open_one(index)

    def _make_room(self) -> None:
        """Close shards until there is room for one more that is open or being opened."""
        while self._open and len(self._open) + len(self._ahead) >= self._max_open:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        with suppress(StopIteration, RuntimeError):  # another thread has just emptied or changed the dict
            index = next(iter(self._open))
            self._open.pop(index, None)
            self.bytes.pop(index, None)
            if self._only_blocks:
                self._partial.pop(index, None)
