"""Stores: local folders and object stores behind one interface; their uploads, retries and errors."""

from __future__ import annotations

from pathlib import Path

from tokenloom.storage.stores.local import LocalStore
from tokenloom.storage.stores.store import Store

__all__ = ["LocalStore", "Store", "open_store"]


def open_store(root: str) -> Store:
    """Return the folder at `root`, a local path or a URL that fsspec knows, as a store.

    Raises StoreError for a URL that contains a secret or names no folder.
    """
    if "://" not in root:
        return LocalStore(Path(root).expanduser().absolute())
    if root.startswith("file://"):
        return LocalStore(root)
    from tokenloom.storage.stores.remote import RemoteStore  # its libraries take longer to import than a local store

    return RemoteStore(root)
