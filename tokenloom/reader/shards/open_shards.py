"""The open shards of a split: a shard is mapped when it is first used, and the least recently used one is closed.

The masks of a split, one beside each shard, are opened and closed in the same way, on their own.

A view of a closed shard stays valid: its map is released with the last view. An open map holds a file descriptor, so a
process that runs out of them closes half of its shards and retries.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from tokenloom.errors import FormatError, StoreError
from tokenloom.reader.shards.one_shard import OpenData, TokenBytes

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    from tokenloom.storage.cache.partial_shard import PartialShard

_NUM_DESCRIPTORS = 2  # an open shard may hold so many: those of its file and of its claims
File = TypeVar("File", bound=OpenData)


class OpenShards(Generic[File]):
    """The open shards of a split, or their masks, by index; several threads may use them.

    Args:
        open_one: opens the shard of an index.
        max_open: how many shards may stay open, at least 1; fewer where they would hold more than two thirds of the
            file descriptors that the process may have.
        in_cache: whether the files are in a cache, which removes the least recently used ones.
        has_masks: whether as many masks as shards may be open.
    """

    def __init__(
        self, open_one: Callable[[int], File], max_open: int, *, in_cache: bool = False, has_masks: bool = False
    ) -> None:
        self._open_one, self._in_cache = open_one, in_cache
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        num_descriptors = _NUM_DESCRIPTORS * (1 + has_masks)
        most = max_open if files == resource.RLIM_INFINITY else files * 2 // 3 // num_descriptors
        self._max_open = max(1, min(max_open, most))
        # Not an OrderedDict: deleting an entry of it may run Python code, and another thread, halfway.
        #: the open shards, the most recently used one last; `__getitem__` might wait for a thread that opens another
        self.opened: dict[int, File] = {}
        self._ahead: dict[int, Future[File]] = {}  # opened ahead of their first use
        self._pid = os.getpid()
        #: token bytes of the shards that are open and complete; `__getitem__` opens the others
        self.bytes: dict[int, TokenBytes] = {}

    def __len__(self) -> int:
        return len(self.opened)

    def __getitem__(self, index: int) -> File:
        self._notice_fork()
        # Each step is one operation of a dict, so it needs no lock, which a fork could leave locked.
        shard = self.opened.pop(index, None) or self._take_or_open(index)
        if not shard.partial:
            self.bytes[index] = shard.bytes  # first: closing an open shard removes its bytes too
        self.opened[index] = shard
        self._ahead.pop(index, None)  # another thread may have begun to open it meanwhile
        self._close_surplus()
        return shard

    def _notice_fork(self) -> None:
        """Forget what belongs to the parent: threads that open shards, and downloads that may end with it."""
        if self._pid != os.getpid():
            self._ahead, self._pid = {}, os.getpid()
            for index, shard in list(self.opened.items()):
                if shard.partial:
                    self.opened.pop(index, None)

    def fetch(self, pieces: Iterable[tuple[int, int, int]]) -> None:
        """Open the shards of pieces, (shard, start, end), and download what is missing of their bytes at once."""
        self._notice_fork()
        self.check_downloads()
        pieces = list(pieces)
        indices = {index for index, _, _ in pieces}
        if len(indices) > self._max_open:
            return  # each is opened and downloaded when it is copied
        for index in indices.difference(self.opened):
            _ = self[index]  # may have to close others: keep no reference to them
        wanted: dict[PartialShard, set[int]] = {}
        for index, start, end in pieces:
            if (shard := self.opened.get(index)) and (partial := shard.partial):
                wanted.setdefault(partial, set()).update(partial.missing(start, end))
        if wanted:
            from tokenloom.storage.cache.partial_shard import fetch_blocks  # for remote stores only

            fetch_blocks({shard: sorted(blocks) for shard, blocks in wanted.items()})

    def check_downloads(self) -> None:
        """Raise FormatError if a shard that was read before all of it was here turned out to be damaged."""
        for index, shard in list(self.opened.items()):
            if shard.partial and shard.check_download() and index in self.opened:
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
        return sum(shard.num_bytes for shard in list(self.opened.values()))

    def forget_blocks(self) -> None:
        """Forget which blocks of the open shards are in the system's cache, because it has evicted some of them."""
        for shard in list(self.opened.values()):
            shard.forget_blocks()

    def touch(self, indices: list[int], may_open: bool) -> None:
        """Mark shards as used, so that others are closed before them; open the rest if `may_open`, as many as fit.

        Errors are raised when a shard is used.
        """
        for index in indices:
            if (shard := self.opened.pop(index, None)) is not None:
                self.opened[index] = shard
        if self._in_cache:
            self._keep_in_cache(set(indices))
        for index in indices[: self._max_open if may_open else 0]:
            if not self.is_known(index):
                with suppress(StoreError, FormatError):
                    _ = self[index]

    def _keep_in_cache(self, used: set[int]) -> None:
        """Mark files in the cache as used; close other shards that it has removed, whose maps keep the disk space."""
        from tokenloom.storage.cache.cache_files import mark_used  # for remote stores only

        for index, shard in list(self.opened.items()):
            if index in used:
                mark_used(shard.path)
            elif not shard.path.exists():
                self.drop(index)

    def forget_ahead(self) -> None:
        """Forget the shards that were opened ahead and not used yet."""
        self._ahead = {}

    def drop(self, index: int) -> None:
        """Forget a shard, so that its next use opens the file again."""
        for known in (self.bytes, self.opened):
            known.pop(index, None)

    def is_known(self, index: int) -> bool:
        """Return whether a shard is open or being opened."""
        return index in self.opened or index in self._ahead

    def prepare(
        self, indices: Iterable[int], pool: ThreadPoolExecutor, planning: AbstractContextManager[object]
    ) -> None:
        """Open shards on the threads of `pool`, and plan their samples, each one inside of `planning`.

        Errors are raised when a shard is used.
        """
        for index in indices:
            if not self.is_known(index):
                self._ahead[index] = pool.submit(self._open_and_plan, index, planning)
                if index in self.opened:  # since it was looked up
                    self._ahead.pop(index, None)
                self._close_surplus()

    def _open_and_plan(self, index: int, planning: AbstractContextManager[object]) -> File:
        shard = self._open_one(index)
        with planning:
            shard.prepare()
        return shard

    def _take_or_open(self, index: int) -> File:
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
            for _ in range(len(self.opened) // 2):
                self._drop_oldest()
            return self._open_one(index)

    def _close_surplus(self) -> None:
        """Close the oldest shards while too many are open or being opened; called after one was added.

        Two threads that made room before they add one could leave one too many.
        """
        while len(self.opened) > 1 and len(self.opened) + len(self._ahead) > self._max_open:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        with suppress(StopIteration, RuntimeError):  # another thread has just emptied or changed the dict
            index = next(iter(self.opened))
            self.opened.pop(index, None)
            self.bytes.pop(index, None)
