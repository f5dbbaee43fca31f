"""Where the shards of a split and their masks are: in a local store, or in the cache of a remote store."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.formats.arrays import token_dtype
from tokenloom.storage.formats.manifest import Manifest
from tokenloom.storage.formats.shard_entries import BLOCKS, MASK, beside
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import check_header, refuse_deleted, version_path

if TYPE_CHECKING:
    from pathlib import Path

    from tokenloom.reader.shards.one_shard import OpenShard
    from tokenloom.reader.shards.open_shards import File
    from tokenloom.storage.cache.cache_process import ShardRequest
    from tokenloom.storage.cache.partial_shard import PartialShard
    from tokenloom.storage.cache.shard_cache import ShardCache

SHARD = ".tok"  # the suffix of a shard, beside MASK
_OPEN_ATTEMPTS = 10
_NUM_REQUESTS = 16  # for `.blocks` files, at a time


class ShardFiles:
    """The shard files of a split.

    Args:
        store: the store of the dataset.
        manifest: the manifest of the version.
        split: the name of the split.
        cache: the cache of a remote store; None for the default one.
        by_blocks: whether shards of a remote store may be read before all of their bytes are here.
        only_blocks: whether they are never downloaded as a whole.
    """

    def __init__(
        self,
        store: Store,
        manifest: Manifest,
        split: str,
        cache: ShardCache | None,
        *,
        by_blocks: bool = True,
        only_blocks: bool = False,
    ) -> None:
        self.store, self.manifest, self.split, self._version = store, manifest, split, manifest.version
        self._dtype = token_dtype(manifest.tokenizer.vocab_size)
        self.entries = manifest.splits[split].shards
        #: whether there is a mask beside each shard
        self.has_masks = len(self.entries) > 0 and self.entries[0].has_mask
        self._by_blocks, self.only_blocks = by_blocks, only_blocks
        self.cache = (cache or _default_cache()) if self.is_remote else None

    @property
    def is_remote(self) -> bool:
        """Whether shards are downloaded before they are read."""
        return not self.store.is_local

    @property
    def folder(self) -> Path:
        """The local folder that holds the shards: the store's, or that of the cache."""
        folder = self.cache.folder if self.cache is not None else self.store.local("")
        assert folder is not None
        return folder

    def num_bytes(self, index: int) -> int:
        """Return the length of a shard and its mask."""
        entry = self.entries[index]
        return entry.bytes + (entry.files[MASK].bytes if self.has_masks else 0)

    def open(self, index: int, open_path: Callable[[Path, PartialShard | None], File], suffix: str = SHARD) -> File:
        """Open a shard, or its mask, at once if its blocks can be downloaded as they are needed.

        A copy in the cache that is damaged or has been removed is downloaded again.

        Raises:
            StoreError: the shard is missing, or can't be read or downloaded; if gc deleted the version, VersionDeleted.
            FormatError: the shard is damaged, or is not the one that the manifest lists.
        """
        try:
            name = beside(self.entries[index].name, suffix)
            if (path := self.store.local(version_path(self._version, name))) is not None:
                return self._open(path, open_path)
            return self._open_cached(self._request(index, suffix), open_path)
        except (StoreError, FormatError):
            refuse_deleted(self.store, self._version)
            raise

    def _open_cached(self, request: ShardRequest, open_path: Callable[[Path, PartialShard | None], File]) -> File:
        """Open a file in the cache, again if other readers remove it in between."""
        assert self.cache is not None  # a remote store has a cache
        was_damaged = False
        for _ in range(_OPEN_ATTEMPTS):
            path, blocks = self._find(request)
            try:
                return self._open(path, open_path, blocks)
            except FormatError as error:
                if blocks:
                    raise
                if was_damaged:
                    raise FormatError(f"{request.place}, in the cache: {error}") from error  # `error` names the copy
                self.cache.discard(request.sha256)
                was_damaged = True
            except StoreError as error:
                if blocks or not isinstance(error.__cause__, FileNotFoundError):
                    raise
        raise StoreError(
            f"{request.place}: {_OPEN_ATTEMPTS} times, other readers of the cache {self.folder} removed the shard "
            "before it was opened; raise its limit: TOKENLOOM_CACHE_LIMIT"
        )

    def _find(self, request: ShardRequest) -> tuple[Path, PartialShard | None]:
        """Return the file of a shard in the cache, and its blocks if it is not complete."""
        assert self.cache is not None  # a remote store has a cache
        if not self._by_blocks:
            return self.cache.fetch(request), None
        return self.cache.open(request, completes=not self.only_blocks)

    def _open(
        self, path: Path, open_path: Callable[[Path, PartialShard | None], File], blocks: PartialShard | None = None
    ) -> File:
        try:
            return open_path(path, blocks)
        except StoreError:
            raise
        except OSError as error:
            what = "mask" if path.suffix == MASK else "shard"
            raise StoreError(
                f"{path}: the {what} is missing or can't be read ({error.strerror}); restore it"
            ) from error

    def check_shard(self, index: int, shard: OpenShard) -> None:
        """Raise FormatError if an open shard is not the one that the manifest lists."""
        check_header(shard.header, self.entries[index], shard.place)
        if shard.header.dtype != self._dtype:
            raise FormatError(f"{shard.place}: not the shard that the manifest lists; restore it")

    def max_open(self, wanted: int) -> int:
        """Return how many shards may stay open, at most `wanted`.

        Shards that are never downloaded as a whole take at most a quarter of the cache, or are one.
        """
        if self.cache is None or self.cache.limit_bytes is None or not self.only_blocks:
            return wanted
        largest = max(map(self.num_bytes, range(len(self.entries))), default=1)
        return min(wanted, max(1, self.cache.limit_bytes // 4 // largest))

    def fetch_ahead(self, indices: list[int]) -> list[int]:
        """Begin to download shards of a remote store, in this order; return those that fit into half of the cache."""
        assert self.cache is not None  # called for remote stores only
        if self.only_blocks:
            return indices[: self.max_open(len(indices))]
        room = (self.cache.limit_bytes or 2**63) // 2
        ends = itertools.accumulate(map(self.num_bytes, indices))
        indices = [index for index, end in zip(indices, ends, strict=True) if end <= room]
        suffixes = [SHARD, MASK] if self.has_masks else [SHARD]
        self.cache.ahead(self._request(index, suffix) for index in indices for suffix in suffixes)
        return indices

    def begin(self, indices: list[int], *, waits: bool, with_offsets: bool) -> list[int]:
        """Begin to read shards of a remote store; return those that can now be opened without waiting for the store.

        Args:
            indices: the shards.
            waits: whether to wait until their first blocks are here; else threads fetch these.
            with_offsets: whether opening needs the document offsets.
        """
        from tokenloom.storage.cache.partial_shard import start_calls  # for remote stores only

        assert self.cache is not None  # called for remote stores only
        if self._by_blocks:
            wait = start_calls([partial(self._fetch_first, index, with_offsets) for index in indices], _NUM_REQUESTS)
            if waits:
                wait()
                return indices
        return [index for index in indices if self.cache.holds(self._request(index))]

    def _fetch_first(self, index: int, with_offsets: bool) -> None:
        """Download what opening a shard needs; errors are raised again where it is used."""
        with suppress(StoreError, FormatError):
            _, blocks = self._find(self._request(index))
            if blocks and with_offsets:
                blocks.offsets_bytes()

    def _request(self, index: int, suffix: str = SHARD) -> ShardRequest:
        from tokenloom.storage.cache.cache_process import ShardRequest  # for remote stores only

        entry = self.entries[index]
        name = beside(entry.name, suffix)
        path, file = version_path(self._version, name), entry.listed[name]
        return ShardRequest(self.store, path, file.sha256, file.bytes, entry.files[BLOCKS].sha256)


def _default_cache() -> ShardCache:
    from tokenloom.storage.cache.shard_cache import ShardCache  # its locks and threads are for remote stores only

    return ShardCache.default()
