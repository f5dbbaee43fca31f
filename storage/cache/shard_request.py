"""What a reader asks of the cache: a shard of a store."""

from __future__ import annotations

from typing import NamedTuple

from tokenloom.storage.stores.store import Store


class ShardRequest(NamedTuple):
    """A file of a remote store with its SHA-256 in hexadecimal and its length, as a manifest lists it.

    `by_blocks` says that single blocks of it may be read before all of it is here, if a `.blocks` file lies beside it;
    `only_blocks`, that the rest is never downloaded.
    """

    store: Store
    path: str
    sha256: str
    num_bytes: int
    by_blocks: bool = False
    only_blocks: bool = False

    @property
    def place(self) -> str:
        """The URL of the file, for messages."""
        return self.store.place(self.path)
