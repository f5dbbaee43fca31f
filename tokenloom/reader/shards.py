"""The files of a split of one kind, shards or masks: where they are, and which of them are open.

The files are in a local store, or in the cache of a remote store. A file is mapped when it is first used, and the least
recently used one is closed. A view of a closed file stays valid: its map is released with the last view.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar

from tokenloom.errors import FormatError, StoreError
from tokenloom.reader.shard_data import OpenFile, OpenMask, OpenOptions, OpenShard, TokenBytes
from tokenloom.storage.formats.manifest import BLOCKS, Manifest, beside
from tokenloom.storage.stores.local_files import translate_errors
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import refuse_deleted, version_path

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    from tokenloom.storage.cache.partial_shard import PartialShard, ShardRequest
    from tokenloom.storage.cache.shard_cache import ShardCache

_OPEN_ATTEMPTS = 10
File = TypeVar("File", bound=OpenFile)


class _Closes(Protocol):
    def drop(self, index: int) -> None: ...


@dataclass(eq=False)
class OpenFiles:
    """The files that are open or being opened, the least recently used first, of all splits that share a limit.

    Args:
        limit: of their number, at least 1.
    """

    limit: int
    # Not an OrderedDict: deleting an entry of it may run Python code, and another thread, halfway.
    _recent: dict[tuple[weakref.ref[_Closes], int], bool] = field(default_factory=dict)  # whether it is opened ahead

    def __reduce__(self) -> tuple[type[OpenFiles], tuple[int]]:
        return OpenFiles, (self.limit,)  # with nothing open; splits that are pickled together share it again

    def use(self, files: _Closes, index: int, *, ahead: bool = False) -> None:
        """Note that a file is used now, and close the oldest while there are too many.

        Two threads that made room before they add one could leave one too many.
        """
        key = weakref.ref(files), index  # weak: a cycle would keep maps until the next collection
        self._recent.pop(key, None)
        self._recent[key] = ahead
        while len(self._recent) > self.limit and len(self._recent) > 1:
            self.drop_oldest()

    def forget(self, files: _Closes, index: int) -> None:
        """Note that a file is closed."""
        self._recent.pop((weakref.ref(files), index), None)

    def may_open_ahead(self) -> bool:
        """Test whether fewer than half of the limit are being opened ahead."""
        return sum([*self._recent.values()]) < self.limit // 2

    def drop_oldest(self) -> None:
        """Close the oldest file."""
        with suppress(StopIteration, RuntimeError):  # another thread has just emptied or changed the dict
            oldest = next(iter(self._recent))
            self._recent.pop(oldest, None)
            if files := oldest[0]():
                files.drop(oldest[1])


class SplitFiles(Generic[File]):
    """The files of a split of one kind, by the index of their shard; several threads may use them. Pickles small.

    Args:
        kind: of the files.
        store, manifest, split: of the dataset, of the version, and the split's name.
        cache: that of a remote store; None for a local one. It removes the least recently used files.
        options: how files are opened.
    """

    def __init__(
        self,
        kind: type[File],
        store: Store,
        manifest: Manifest,
        split: str,
        cache: ShardCache | None,
        options: OpenOptions,
    ) -> None:
        self.store, self.manifest, self.split, self.cache = store, manifest, split, cache
        self.entries = manifest.splits[split].shards
        self._kind, self.options = kind, options
        #: whether the cache downloads files whole
        self.completes = options.access != "range"
        #: the open files; `__getitem__` might wait for a thread that opens another
        self.opened: dict[int, File] = {}
        #: the open files of all splits that share a limit with this one
        self.open_files = OpenFiles(options.max_open_shards)
        #: token bytes of the files that are open and complete; `__getitem__` opens the others
        self.bytes: dict[int, TokenBytes] = {}
        self._ahead: dict[int, Future[File]] = {}  # opened ahead of their first use
        self._in_use: set[int] = set()  # of a remote store, those that the rows of a loader need now
        self._pid = os.getpid()

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"opened": {}, "bytes": {}, "_ahead": {}, "_in_use": set()}

    def share_limit(self, open_files: OpenFiles) -> None:
        """Count the open files among those of other splits from now on."""
        self.open_files = open_files
        for index in list(self.opened):  # another thread may open or close one
            open_files.use(self, index)

    def __len__(self) -> int:
        return len(self.opened)

    def __getitem__(self, index: int) -> File:
        if self._pid != os.getpid():
            self._forget_parent()
        # Each step is one operation of a dict, so it needs no lock, which a fork could leave locked.
        file = self.opened.pop(index, None)
        if file is None and (ahead := self._ahead.pop(index, None)):
            from concurrent.futures import CancelledError  # only a loader opens files ahead

            # Cancelled with the loader that requested it; or failed, perhaps for a transient reason.
            with suppress(CancelledError, StoreError, FormatError):
                file = ahead.result()
        file = file or self.open(index)
        if self.cache:
            file.hold(is_used=index in self._in_use)
        if not file.partial:
            self.bytes[index] = file.bytes  # first: closing an open file removes its bytes too
        self.opened[index] = file
        self._ahead.pop(index, None)  # another thread may have begun to open it meanwhile
        self.open_files.use(self, index)
        return file

    def num_bytes(self, index: int) -> int:
        """Look up the length of a file."""
        entry = self.entries[index]
        return entry.listed[beside(entry.name, self._kind.suffix)]["bytes"]

    def request(self, index: int) -> ShardRequest:
        """Describe a file of a remote store for the cache."""
        from tokenloom.storage.cache.partial_shard import ShardRequest  # for remote stores only

        entry = self.entries[index]
        name = beside(entry.name, self._kind.suffix)
        path, file = version_path(self.manifest.version, name), entry.listed[name]
        return ShardRequest(self.store, path, file["sha256"], file["bytes"], entry.files[BLOCKS]["sha256"])

    def open(self, index: int) -> File:
        """Open a file, at once if its blocks can be downloaded as they are needed.

        A copy that has been removed from the cache is downloaded again.

        Raises:
            StoreError: the file is missing, or can't be read or downloaded; if gc deleted the version, VersionDeleted.
            FormatError: the file is damaged, or is not the one that the manifest lists.
        """
        entry = self.entries[index]
        try:
            if self.cache:
                return self._open_cached(index, self.cache)
            path = self.store.local(version_path(self.manifest.version, beside(entry.name, self._kind.suffix)))
            assert path is not None  # a store without a cache is local
            with translate_errors(path):
                return self._kind(entry, path, self.options)
        except (OSError, FormatError) as error:
            refuse_deleted(self.store, self.manifest.version)
            if isinstance(error, FileNotFoundError):
                raise StoreError(f"{path}: the file is missing; restore it") from error
            raise

    def _open_cached(self, index: int, cache: ShardCache) -> File:
        """Open a file in the cache, again if other readers remove it in between."""
        request = self.request(index)
        for _ in range(_OPEN_ATTEMPTS):
            blocks: PartialShard | None = None
            if self.options.verify == "full":
                path = cache.fetch(request)
            else:
                path, blocks = cache.open(request, completes=self.completes)
            try:
                with suppress(FileNotFoundError), translate_errors(path):
                    return self._kind(self.entries[index], path, self.options, blocks)
            except FormatError as error:
                if blocks:
                    raise
                raise FormatError(f"{request.place}, in the cache: {error}; delete this copy") from error
        raise StoreError(
            f"{request.place}: {_OPEN_ATTEMPTS} times, other readers of the cache {cache.folder} removed the shard "
            "before it was opened; raise its limit: TOKENLOOM_CACHE_LIMIT"
        )

    def _forget_parent(self) -> None:
        """Forget what belongs to the parent of a fork: threads that open files, and downloads that may end with it."""
        self.forget_ahead()
        self._pid = os.getpid()  # last: until then, `drop` takes no lock of the parent's
        for index, shard in list(self.opened.items()):
            if shard.partial:
                self.drop(index)

    def missing(self, pieces: Sequence[tuple[int, int, int]]) -> dict[PartialShard, set[int]]:
        """Open the shards of pieces, (shard, start, end), and find their blocks that must be downloaded."""
        if self._pid != os.getpid():
            self._forget_parent()
        self.check_downloads()
        indices = {index for index, _, _ in pieces}
        if len(indices) > self.open_files.limit:
            return {}  # each is opened and downloaded when it is copied
        for index in indices.difference(self.opened):
            _ = self[index]  # may have to close others: keep no reference to them
        wanted: dict[PartialShard, set[int]] = {}
        for index, start, end in pieces:
            if (shard := self.opened.get(index)) and (partial := shard.partial):
                wanted.setdefault(partial, set()).update(partial.missing(start, end))
        return wanted

    def check_downloads(self) -> None:
        """Read the shards that are complete by now from their files, no longer block by block."""
        for index, shard in list(self.opened.items()) if len(self.bytes) < len(self.opened) else ():
            if shard.partial and shard.check_download() and index in self.opened:
                shard.hold(is_used=index in self._in_use)
                self.bytes[index] = shard.bytes

    def bytes_of(self, index: int) -> TokenBytes:
        """Look up the token bytes of a shard, which is opened if necessary."""
        return self.bytes.get(index) or self[index].bytes

    def touch(self, indices: list[int], may_open: bool) -> None:
        """Mark shards as used, so that others are closed before them; open the rest if `may_open`, as many as fit.

        Those that were opened ahead count as open from now on. Errors are raised when a shard is used.
        """
        if self._pid != os.getpid():
            self._forget_parent()
        for index in indices:
            if index in self.opened:
                self.open_files.use(self, index)
        if self.cache:
            self._keep_in_cache(set(indices))
        for index in indices[: self.open_files.limit]:
            ahead = self._ahead.get(index)
            is_ready = ahead and ahead.done() and not ahead.cancelled() and not ahead.exception()
            if index not in self.opened and (is_ready or (may_open and not ahead)):
                with suppress(StoreError, FormatError):
                    _ = self[index]

    def _keep_in_cache(self, used: set[int]) -> None:
        """Keep files in the cache while they are used; close others that it has removed, whose maps take disk space."""
        self._in_use = used
        for index, shard in list(self.opened.items()):
            shard.hold(is_used=index in used)
            if index not in used and not shard.path.exists():
                self.drop(index)

    def forget_ahead(self) -> None:
        """Forget the shards that were opened ahead and not used yet."""
        for index in list(self._ahead):
            self.drop(index)

    def drop(self, index: int) -> None:
        """Forget a shard, so that its next use opens the file again."""
        self.open_files.forget(self, index)
        self.bytes.pop(index, None)
        self.opened.pop(index, None)
        if (ahead := self._ahead.pop(index, None)) and self._pid == os.getpid():
            ahead.cancel()  # takes a lock, which a thread of the parent may have held at a fork

    def open_ahead(
        self, index: int, pool: ThreadPoolExecutor, prepare: Callable[[int, File], object] | None, *, by_blocks: bool
    ) -> None:
        """Open a file on a thread of a pool, and prepare it, if half of the limit is not being opened already.

        Errors are raised when a file is used.

        Args:
            index: the file; if it is not open yet, and can be opened without downloading all of it.
            pool: has the thread.
            prepare: what to do with the open file.
            by_blocks: whether it may be opened while the cache does not have it.
        """
        if index in self.opened or index in self._ahead or not self.open_files.may_open_ahead():
            return
        reads_blocks = by_blocks and self.options.verify != "full"
        if not self.cache or reads_blocks or self.cache.holds(self.request(index)):
            self._ahead[index] = pool.submit(self._open_and_hold, index, prepare)
            if index in self.opened:  # since it was looked up
                self._ahead.pop(index, None)
            self.open_files.use(self, index, ahead=index in self._ahead)

    def _open_and_hold(self, index: int, prepare: Callable[[int, File], object] | None) -> File:
        file = self.open(index)
        if prepare:
            prepare(index, file)
        file.hold(is_used=self.cache is not None)
        return file


#: the shards of a split, or their masks
AnyFiles: TypeAlias = SplitFiles[OpenShard] | SplitFiles[OpenMask]
