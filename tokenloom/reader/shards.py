"""The shards of a split and their masks: where their files are, and which of them are open.

The files are in a local store, or in the cache of a remote store. A shard is mapped when it is first used, and the
least recently used one is closed; masks are opened and closed in the same way, on their own. A view of a closed shard
stays valid: its map is released with the last view. An open map holds a file descriptor, so a process that runs out of
them closes half of its shards and retries.
"""

from __future__ import annotations

import errno
import itertools
import os
import resource
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeAlias, TypeVar, cast

from tokenloom.errors import FormatError, StoreError
from tokenloom.reader.batch import BatchFormat
from tokenloom.reader.shard_data import OpenData, OpenMask, OpenShard, TokenBytes
from tokenloom.storage.formats.manifest import BLOCKS, MASK, Manifest, beside
from tokenloom.storage.packing.packings import packing_named
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import check_header, refuse_deleted, version_path

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor
    from pathlib import Path

    from tokenloom.storage.cache.partial_shard import PartialShard, ShardRequest
    from tokenloom.storage.cache.shard_cache import ShardCache

SHARD = ".tok"  # the suffix of a shard, beside MASK
_OPEN_ATTEMPTS = 10
_NUM_DESCRIPTORS = 2  # an open shard may hold so many: of its map, and of its lock in the cache
File = TypeVar("File", bound=OpenData)


class OpenOptions(NamedTuple):
    """How shards are opened, and how many stay open; TokenDataset documents the arguments."""

    max_open_shards: int
    verify: str
    access: str


class ShardFiles:
    """The shard files of a split.

    Args:
        store, manifest, split: of the dataset, of the version, and the split's name.
        cache: the cache of a remote store; None for the default one.
        options: how shards are opened.
        packing, form: how the tokens of a shard become rows, and what a batch holds.
    """

    def __init__(
        self,
        store: Store,
        manifest: Manifest,
        split: str,
        cache: ShardCache | None,
        options: OpenOptions,
        packing: str,
        form: BatchFormat,
    ) -> None:
        self.store, self.manifest, self.split = store, manifest, split
        self.entries = manifest.splits[split].shards
        #: whether there is a mask beside each shard
        self.has_masks = form.learn is not None
        self._options, self._packing, self._form = options, packing, form
        #: whether the first use of a shard plans its samples, which takes long
        self.plans_shards = packing_named(packing).follows_documents
        self._needs_offsets = self.plans_shards or form.needs_marks
        #: whether shards are downloaded before they are read; and the local folder that holds them
        self.is_remote = not store.is_local
        if self.is_remote and cache is None:
            from tokenloom.storage.cache.shard_cache import ShardCache  # its locks and threads are for remote stores

            cache = ShardCache.default()
        self.cache = cache if self.is_remote else None
        self.folder = cast("Path", store.local("") if self.cache is None else self.cache.folder)
        #: how many shards may stay open: they hold at most two thirds of the file descriptors that the process may have
        self.max_open = options.max_open_shards
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if descriptors != resource.RLIM_INFINITY:
            held = _NUM_DESCRIPTORS * (1 + self.has_masks)
            self.max_open = max(1, min(self.max_open, descriptors * 2 // 3 // held))

    def num_bytes(self, index: int) -> int:
        """Add up the bytes of a shard and its mask."""
        entry = self.entries[index]
        return entry.bytes + (entry.files[MASK].bytes if self.has_masks else 0)

    def open_shard(self, index: int) -> OpenShard:
        """Open a shard, at once if its blocks can be downloaded as they are needed.

        A copy in the cache that is damaged or has been removed is downloaded again.

        Raises:
            StoreError: the shard is missing, or can't be read or downloaded; if gc deleted the version, VersionDeleted.
            FormatError: the shard is damaged, or is not the one that the manifest lists.
        """
        return self._open(index, SHARD, self._open_shard)

    def open_and_plan(self, index: int) -> OpenShard:
        """Open a shard and plan its samples, which takes longer; errors as open_shard."""
        shard = self.open_shard(index)
        _ = shard.plan
        return shard

    def open_mask(self, index: int) -> OpenMask:
        """Open the mask beside a shard; errors as open_shard."""
        return self._open(index, MASK, self._open_mask)

    def _open_shard(self, index: int, path: Path, blocks: PartialShard | None) -> OpenShard:
        options, form = self._options, self._form
        shard = OpenShard(path, options.verify, options.access, self._packing, form.seq_len, blocks)
        if self._needs_offsets:
            _ = shard.document_offsets  # verified while a damaged copy can still be downloaded again
        check_header(shard.header, self.entries[index], shard.place)
        if shard.header.dtype != form.dtype:
            raise FormatError(f"{shard.place}: not the shard that the manifest lists; restore it")
        return shard

    def _open_mask(self, index: int, path: Path, blocks: PartialShard | None) -> OpenMask:
        return OpenMask(self.entries[index].files[MASK], path, self._options.verify, self._options.access, blocks)

    def _open(self, index: int, suffix: str, open_path: Callable[[int, Path, PartialShard | None], File]) -> File:
        try:
            path = self.store.local(version_path(self.manifest.version, beside(self.entries[index].name, suffix)))
            if path is None:
                return self._open_cached(index, suffix, open_path)
            try:
                return open_path(index, path, None)
            except StoreError:
                raise
            except OSError as error:
                raise _unreadable(path, error) from error
        except (StoreError, FormatError):
            refuse_deleted(self.store, self.manifest.version)
            raise

    def _open_cached(
        self, index: int, suffix: str, open_path: Callable[[int, Path, PartialShard | None], File]
    ) -> File:
        """Open a file in the cache, again if other readers remove it in between."""
        assert self.cache is not None  # a remote store has a cache
        request = self._request(index, suffix)
        was_damaged = False
        for _ in range(_OPEN_ATTEMPTS):
            path, blocks = self._find(request)
            try:
                return open_path(index, path, blocks)
            except FormatError as error:
                if blocks:
                    raise
                if was_damaged:
                    raise FormatError(f"{request.place}, in the cache: {error}") from error  # `error` names the copy
                self.cache.discard(request.sha256)
                was_damaged = True
            except StoreError:
                raise
            except OSError as error:
                if blocks or not isinstance(error, FileNotFoundError):
                    raise _unreadable(path, error) from error
        raise StoreError(
            f"{request.place}: {_OPEN_ATTEMPTS} times, other readers of the cache {self.folder} removed the shard "
            "before it was opened; raise its limit: TOKENLOOM_CACHE_LIMIT"
        )

    def _find(self, request: ShardRequest) -> tuple[Path, PartialShard | None]:
        """Find the file of a shard in the cache, and its blocks if it is not complete."""
        assert self.cache is not None  # a remote store has a cache
        if self._options.verify == "full":
            return self.cache.fetch(request), None
        return self.cache.open(request, completes=self._options.access != "range")

    def fetch_ahead(self, indices: list[int]) -> list[int]:
        """Begin to download shards of a remote store, in this order; return those that fit into half of the cache."""
        assert self.cache is not None  # called for remote stores only
        if self._options.access == "range":
            return indices[: self.max_open]
        room = (self.cache.limit_bytes or 2**63) // 2
        ends = itertools.accumulate(map(self.num_bytes, indices))
        indices = [index for index, end in zip(indices, ends, strict=True) if end <= room]
        suffixes = [SHARD, MASK] if self.has_masks else [SHARD]
        self.cache.ahead(self._request(index, suffix) for index in indices for suffix in suffixes)
        return indices

    def opens_at_once(self, index: int, *, by_blocks: bool) -> bool:
        """Return whether a shard of a remote store can be opened without waiting for all of it.

        Args:
            index: the shard.
            by_blocks: whether it may be opened while the cache does not have it.
        """
        assert self.cache is not None  # called for remote stores only
        return (by_blocks and self._options.verify != "full") or self.cache.holds(self._request(index))

    def _request(self, index: int, suffix: str = SHARD) -> ShardRequest:
        from tokenloom.storage.cache.partial_shard import ShardRequest  # for remote stores only

        entry = self.entries[index]
        name = beside(entry.name, suffix)
        path, file = version_path(self.manifest.version, name), entry.listed[name]
        return ShardRequest(self.store, path, file.sha256, file.bytes, entry.files[BLOCKS].sha256)


def _unreadable(path: Path, error: OSError) -> StoreError:
    what = "mask" if path.suffix == MASK else "shard"
    return StoreError(f"{path}: the {what} is missing or can't be read ({error.strerror}); restore it")


class OpenShards(Generic[File]):
    """The open shards of a split, or their masks, by index; several threads may use them.

    Args:
        open_one: opens the shard of an index.
        max_open: how many shards may stay open, at least 1.
        in_cache: whether the files are in a cache, which removes the least recently used ones.
    """

    def __init__(self, open_one: Callable[[int], File], max_open: int, *, in_cache: bool) -> None:
        self._open_one, self._max_open, self._in_cache = open_one, max_open, in_cache
        # Not an OrderedDict: deleting an entry of it may run Python code, and another thread, halfway.
        #: the open shards, the most recently used one last; `__getitem__` might wait for a thread that opens another
        self.opened: dict[int, File] = {}
        self._ahead: dict[int, Future[File]] = {}  # opened ahead of their first use
        self._in_use: set[int] = set()  # of a remote store, the shards that the rows of a loader need now
        self._pid = os.getpid()
        #: token bytes of the shards that are open and complete; `__getitem__` opens the others
        self.bytes: dict[int, TokenBytes] = {}

    def __len__(self) -> int:
        return len(self.opened)

    def __getitem__(self, index: int) -> File:
        if self._pid != os.getpid():
            self._forget_parent()
        # Each step is one operation of a dict, so it needs no lock, which a fork could leave locked.
        shard = self.opened.pop(index, None) or self._take_or_open(index)
        if self._in_cache:
            shard.hold(is_used=index in self._in_use)
        if not shard.partial:
            self.bytes[index] = shard.bytes  # first: closing an open shard removes its bytes too
        self.opened[index] = shard
        self._ahead.pop(index, None)  # another thread may have begun to open it meanwhile
        self._close_surplus()
        return shard

    def _forget_parent(self) -> None:
        """Forget what belongs to the parent of a fork: threads that open shards, and downloads that may end with it."""
        self._ahead, self._pid = {}, os.getpid()
        for index, shard in list(self.opened.items()):
            if shard.partial:
                self.opened.pop(index, None)

    def fetch(self, pieces: Iterable[tuple[int, int, int]]) -> None:
        """Open the shards of pieces, (shard, start, end), and download what is missing of their bytes at once."""
        if self._pid != os.getpid():
            self._forget_parent()
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
        """Read the shards that are complete by now from their files, no longer block by block."""
        for index, shard in list(self.opened.items()):
            if shard.partial and shard.check_download() and index in self.opened:
                shard.hold(is_used=index in self._in_use)
                self.bytes[index] = shard.bytes

    def bytes_of(self, index: int) -> TokenBytes:
        """Look up the token bytes of a shard, which is opened if necessary."""
        return self.bytes.get(index) or self[index].bytes

    @property
    def num_bytes(self) -> int:
        """The bytes of the open files."""
        return sum(shard.num_bytes for shard in list(self.opened.values()))

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
            if index not in self.opened and index not in self._ahead:
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
        self._ahead = {}

    def drop(self, index: int) -> None:
        """Forget a shard, so that its next use opens the file again."""
        self.bytes.pop(index, None)
        self.opened.pop(index, None)

    def is_known(self, index: int) -> bool:
        """Test whether a shard is open or being opened."""
        return index in self.opened or index in self._ahead

    def open_ahead(self, indices: list[int], pool: ThreadPoolExecutor, open_one: Callable[[int], File]) -> None:
        """Open shards on the threads of a pool; errors are raised when a shard is used."""
        room = max(0, self._max_open // 2 - len(self._ahead))  # at most half of the open ones
        for index in indices[:room]:
            if not self.is_known(index):
                self._ahead[index] = pool.submit(self._open_and_hold, index, open_one)
                if index in self.opened:  # since it was looked up
                    self._ahead.pop(index, None)
                self._close_surplus()

    def _open_and_hold(self, index: int, open_one: Callable[[int], File]) -> File:
        shard = open_one(index)
        shard.hold(is_used=self._in_cache)
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
            while self._ahead:
                _, ahead = self._ahead.popitem()
                if not ahead.cancel():
                    ahead.exception()  # waits for it
                del ahead
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
            self.drop(next(iter(self.opened)))


#: the open shards of a split, or their masks
OpenFiles: TypeAlias = OpenShards[OpenShard] | OpenShards[OpenMask]
