"""Where the shards of a split and their masks are: in a local store, or in the cache of a remote store."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

from tokenloom.errors import FormatError, StoreError
from tokenloom.reader.shards.batch_format import BatchFormat
from tokenloom.reader.shards.one_shard import OpenMask, OpenShard
from tokenloom.storage.formats.manifest import Manifest
from tokenloom.storage.formats.shard_entries import BLOCKS, MASK, beside
from tokenloom.storage.packing.packings import packing_named
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import check_header, refuse_deleted, version_path

if TYPE_CHECKING:
    from pathlib import Path

    from tokenloom.reader.shards.open_shards import File
    from tokenloom.storage.cache.cache_process import ShardRequest
    from tokenloom.storage.cache.partial_shard import PartialShard
    from tokenloom.storage.cache.shard_cache import ShardCache

SHARD = ".tok"  # the suffix of a shard, beside MASK
_OPEN_ATTEMPTS = 10
_NUM_REQUESTS = 16  # for `.blocks` files, at a time


class OpenOptions(NamedTuple):
    """How shards are opened, and how many stay open; TokenDataset documents the arguments."""

    max_open_shards: int
    verify: str
    access: str


class ShardFiles:
    """The shard files of a split.

    Args:
        store: the store of the dataset.
        manifest: the manifest of the version.
        split: the name of the split.
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
        self.cache = (cache or _default_cache()) if self.is_remote else None
        self.folder = cast("Path", store.local("") if self.cache is None else self.cache.folder)
        #: how many shards may stay open
        self.max_open = options.max_open_shards
        if self.cache is not None and self.cache.limit_bytes is not None and options.access == "range":
            # Shards that are never downloaded as a whole take at most a quarter of the cache, or are one.
            largest = max(map(self.num_bytes, range(len(self.entries))), default=1)
            self.max_open = min(self.max_open, max(1, self.cache.limit_bytes // 4 // largest))

    def num_bytes(self, index: int) -> int:
        """Return the length of a shard and its mask."""
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
        """Return the file of a shard in the cache, and its blocks if it is not complete."""
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

    def begin(self, indices: list[int], *, waits: bool) -> list[int]:
        """Begin to read shards of a remote store; return those that can now be opened without waiting for the store.

        Args:
            indices: the shards.
            waits: whether to wait until their first blocks are here; else threads fetch these.
        """
        from tokenloom.storage.cache.partial_shard import start_calls  # for remote stores only

        assert self.cache is not None  # called for remote stores only
        if self._options.verify != "full":
            wait = start_calls([partial(self._fetch_first, index) for index in indices], _NUM_REQUESTS)
            if waits:
                wait()
                return indices
        return [index for index in indices if self.cache.holds(self._request(index))]

    def _fetch_first(self, index: int) -> None:
        """Download what opening a shard needs; errors are raised again where it is used."""
        with suppress(StoreError, FormatError):
            _, blocks = self._find(self._request(index))
            if blocks and self._needs_offsets:
                blocks.offsets_bytes()

    def _request(self, index: int, suffix: str = SHARD) -> ShardRequest:
        from tokenloom.storage.cache.cache_process import ShardRequest  # for remote stores only

        entry = self.entries[index]
        name = beside(entry.name, suffix)
        path, file = version_path(self.manifest.version, name), entry.listed[name]
        return ShardRequest(self.store, path, file.sha256, file.bytes, entry.files[BLOCKS].sha256)


def _unreadable(path: Path, error: OSError) -> StoreError:
    what = "mask" if path.suffix == MASK else "shard"
    return StoreError(f"{path}: the {what} is missing or can't be read ({error.strerror}); restore it")


def _default_cache() -> ShardCache:
    from tokenloom.storage.cache.shard_cache import ShardCache  # its locks and threads are for remote stores only

    return ShardCache.default()
