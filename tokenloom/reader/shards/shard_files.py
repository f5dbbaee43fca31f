"""Where the shards of a split are: in a local store, or in the cache of a remote store."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.cache.shard_request import ShardRequest
from tokenloom.storage.formats.arrays import token_dtype
from tokenloom.storage.formats.manifest import Manifest
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import check_header, version_path

if TYPE_CHECKING:
    from pathlib import Path

    from tokenloom.reader.shards.one_shard import OpenShard
    from tokenloom.storage.cache.partial_shard import PartialShard
    from tokenloom.storage.cache.shard_cache import ShardCache
    from tokenloom.storage.formats.shard import ShardHeader
    from tokenloom.storage.versions.leases import Lease

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
        lease: the lease on the version; it is renewed while shards are read.
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
        lease: Lease | None = None,
    ) -> None:
        self.store, self.manifest, self.split, self._version = store, manifest, split, manifest.version
        self._dtype = token_dtype(manifest.tokenizer.vocab_size)
        self.entries = manifest.splits[split].shards
        self.lease = lease
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

    def open(self, index: int, open_path: Callable[[Path, PartialShard | None], OpenShard]) -> OpenShard:
        """Open a shard, at once if its blocks can be downloaded as they are needed.

        A copy in the cache that is damaged or has been removed is downloaded again as a whole.

        Raises:
            StoreError: the shard is missing, or can't be read or downloaded; if gc deleted the version, VersionDeleted.
            FormatError: the shard is damaged, or is not the one that the manifest lists.
        """
        try:
            return self._open_or_restore(index, open_path)
        except (StoreError, FormatError):
            from tokenloom.storage.versions.retirement import refuse_deleted  # most readers find all shards

            refuse_deleted(self.store, self._version)
            raise

    def _open_or_restore(self, index: int, open_path: Callable[[Path, PartialShard | None], OpenShard]) -> OpenShard:
        blocks = self.cache.begin(self._request(index)) if self.cache is not None else None
        path = blocks.path if blocks else self.path(index)
        try:
            return self._open(index, path, open_path, blocks)
        except FormatError:
            if self.cache is None or self.only_blocks:
                raise
            self.cache.discard(self.entries[index].sha256)
        except StoreError as error:
            if self.cache is None or not isinstance(error.__cause__, FileNotFoundError):
                raise
        return self._open_again(index, open_path)

    def _open_again(self, index: int, open_path: Callable[[Path, PartialShard | None], OpenShard]) -> OpenShard:
        """Download a shard if necessary and open it, a few times if other readers remove the copy in between."""
        place = self.store.place(version_path(self._version, self.entries[index].name))
        for _ in range(_OPEN_ATTEMPTS):
            path = self.path(index)
            try:
                return self._open(index, path, open_path)
            except FormatError as error:  # it names only the copy
                raise FormatError(f"{place}, in the cache: {error}") from error
            except StoreError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
        raise StoreError(
            f"{place}: {_OPEN_ATTEMPTS} times, other readers of the cache {self.folder} removed the shard before it was"
            " opened; raise its limit: TOKENLOOM_CACHE_LIMIT"
        )

    def _open(
        self,
        index: int,
        path: Path,
        open_path: Callable[[Path, PartialShard | None], OpenShard],
        blocks: PartialShard | None = None,
    ) -> OpenShard:
        try:
            shard = open_path(path, blocks)
        except OSError as error:
            raise StoreError(f"{path}: the shard is missing or can't be read ({error.strerror}); restore it") from error
        self._check(index, path, shard.header)
        return shard

    def max_open(self, wanted: int) -> int:
        """Return how many shards may stay open, at most `wanted`; fewer if the cache is to hold only blocks of them."""
        if self.cache is None or not self.only_blocks:
            return wanted
        return min(wanted, self.cache.max_partial(max((entry.bytes for entry in self.entries), default=0)))

    def fetch_ahead(self, indices: list[int]) -> list[int]:
        """Begin to download shards of a remote store, in this order; return those that fit into half of the cache."""
        assert self.cache is not None  # called for remote stores only
        room = (self.cache.limit_bytes or 2**63) // 2
        requests = []
        for index in indices:
            request = self._request(index)
            room -= request.num_bytes
            if room < 0:
                break
            requests.append(request)
        if self.only_blocks:
            return indices[: self.max_open(len(requests))]
        self.cache.ahead(requests)
        return indices[: len(requests)]

    def begin(self, indices: list[int], *, waits: bool, with_offsets: bool) -> list[int]:
        """Begin to read shards of a remote store; return those that can now be opened without waiting for the store.

        Args:
            indices: the shards.
            waits: whether to wait until their first blocks are here; else threads fetch these.
            with_offsets: whether opening needs the document offsets.
        """
        from tokenloom.storage.cache.requests import Requests  # for remote stores only

        requests = Requests([partial(self._begin, index, with_offsets) for index in indices], _NUM_REQUESTS)
        if waits:
            requests.wait()
        return [index for index in indices if self._can_open(index, by_blocks=waits or not with_offsets)]

    def _begin(self, index: int, with_offsets: bool) -> None:
        assert self.cache is not None  # called for remote stores only
        with suppress(StoreError, FormatError):  # raised again where the shard is used
            blocks = self.cache.begin(self._request(index), waits=False)
            if blocks and with_offsets:
                blocks.fetch_offsets()

    def _can_open(self, index: int, by_blocks: bool) -> bool:
        assert self.cache is not None  # called for remote stores only
        request = self._request(index)
        return self.cache.holds(request) or (by_blocks and self.cache.has_begun(request))

    def path(self, index: int) -> Path:
        """Return the local path of a shard; a shard of a remote store is downloaded first."""
        request = self._request(index)
        if (path := self.store.local(request.path)) is not None:
            return path
        assert self.cache is not None  # a remote store has a cache
        if self.only_blocks and not self.cache.holds(request):
            raise StoreError(
                f'{request.place}: access="range" needs its file .blocks, which is missing or damaged; write it with '
                "`tokenloom verify --write-blocks`, or read with another access"
            )
        return self.cache.fetch(request)

    def _request(self, index: int) -> ShardRequest:
        entry = self.entries[index]
        return ShardRequest(
            self.store,
            version_path(self._version, entry.name),
            entry.sha256,
            entry.bytes,
            self._by_blocks,
            self.only_blocks,
        )

    def _check(self, index: int, path: Path, header: ShardHeader) -> None:
        check_header(header, self.entries[index], str(path))
        if header.dtype != self._dtype:
            raise FormatError(f"{path}: not the shard that the manifest lists; restore it")


def _default_cache() -> ShardCache:
    from tokenloom.storage.cache.shard_cache import ShardCache  # its locks and threads are for remote stores only

    return ShardCache.default()
