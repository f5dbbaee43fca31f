"""Where the shards of a split lie: in a local store, or in the cache that a remote one is read through."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.cache.shard_cache import ShardCache, ShardRequest
from tokenloom.storage.formats.shard import ShardHeader, token_dtype
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.versions import check_listed, version_path

if TYPE_CHECKING:
    from tokenloom.reader.open_shards import OpenShard


class ShardFiles:
    """The shard files of a split.

    Args:
        store: of the dataset.
        manifest: of the version.
        split: of the version.
        cache: for a remote store; None for the default one.
    """

    def __init__(self, store: Store, manifest: dict[str, Any], split: str, cache: ShardCache | None) -> None:
        self.store, self._version, self._split = store, manifest["version"], split
        self._dtype = token_dtype(manifest["tokenizer"]["vocab_size"])
        self.entries: list[dict[str, Any]] = manifest["splits"][split]["shards"]
        self.cache = (cache or ShardCache.default()) if self.is_remote else None

    @property
    def is_remote(self) -> bool:
        """Whether shards are downloaded before they are read."""
        return not self.store.is_local

    def open(self, index: int, open_path: Callable[[Path], OpenShard]) -> OpenShard:
        """Open a shard; a copy in the cache that is damaged, or was removed meanwhile, is fetched again, once.

        Raises:
            StoreError: the shard is missing or can't be read or fetched.
            FormatError: it is damaged, or another one than the manifest lists.
        """
        path = self.path(index)
        try:
            return self._open(index, path, open_path)
        except FormatError:
            if self.cache is None:
                raise
            self.cache.discard(self.entries[index]["sha256"])
        except StoreError as error:
            if self.cache is None or not isinstance(error.__cause__, FileNotFoundError):
                raise
        try:
            return self._open(index, self.path(index), open_path)
        except FormatError as error:  # it names the copy alone
            place = self.store.place(version_path(self._version, self.entries[index]["name"]))
            raise FormatError(f"{place}, in the cache: {error}") from error

    def _open(self, index: int, path: Path, open_path: Callable[[Path], OpenShard]) -> OpenShard:
        try:
            shard = open_path(path)
        except OSError as error:
            raise StoreError(f"{path}: the shard is missing or can't be read ({error.strerror}); restore it") from error
        self._check(index, path, shard.header)
        return shard

    def fetch_ahead(self, indices: list[int]) -> None:
        """Begin to download shards of a remote store, in that order, as many as take half of the cache."""
        assert self.cache is not None  # only asked of a remote store
        room = (self.cache.limit_bytes or 2**63) // 2
        requests = []
        for index in indices:
            entry = self.entries[index]
            room -= entry["bytes"]
            if room < 0:
                break
            name = version_path(self._version, entry["name"])
            requests.append(ShardRequest(self.store, name, entry["sha256"], entry["bytes"]))
        self.cache.ahead(requests)

    def is_here(self, index: int) -> bool:
        """Return whether a shard of a remote store lies in the cache."""
        assert self.cache is not None  # only asked of a remote store
        return self.cache.holds(self.entries[index]["sha256"], self.entries[index]["bytes"])

    def path(self, index: int) -> Path:
        """Return the local path of a shard, which is downloaded first if the store is remote."""
        entry = self.entries[index]
        name = version_path(self._version, entry["name"])
        if (path := self.store.local(name)) is not None:
            return path
        assert self.cache is not None  # a remote store has one
        return self.cache.fetch(self.store, name, entry["sha256"], entry["bytes"])

    def _check(self, index: int, path: Path, header: ShardHeader) -> None:
        check_listed(header, self.entries[index], str(path))
        if header.dtype != self._dtype:
            raise FormatError(f"{path}: it is not the shard that the manifest lists; restore it")
