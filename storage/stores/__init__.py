"""Stores: local folders and object stores behind one interface; their uploads, retries and errors."""

from __future__ import annotations

from pathlib import Path

from tokenloom.storage.stores.local import LocalStore
from tokenloom.storage.stores.remote import RemoteStore
from tokenloom.storage.stores.store import Store

__all__ = ["LocalStore", "RemoteStore", "Store", "open_store"]


def open_store(root: str) -> Store:
    """Return the folder at `root`, a local path or a URL that fsspec knows, as a store.

    Raises StoreError for a URL that contains a secret or names no folder.
    """
    if "://" not in root:
        return LocalStore(Path(root).expanduser().absolute())
    return LocalStore(root) if root.startswith("file://") else RemoteStore(root)
