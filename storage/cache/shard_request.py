"""What a reader asks of the cache: a shard of a store."""

from __future__ import annotations

from typing import NamedTuple

from tokenloom.storage.stores.store import Store


class ShardRequest(NamedTuple):
    """A file of a remote store with its SHA-256 in hexadecimal and its length, as a manifest lists it."""

    store: Store
    path: str
    sha256: str
    num_bytes: int
