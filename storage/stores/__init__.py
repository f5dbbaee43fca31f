"""Stores: local folders and object stores behind one interface; their uploads, retries and errors."""

from __future__ import annotations

from tokenloom.storage.stores.store import Store

__all__ = ["Store", "open_store"]


def open_store(root: str) -> Store:
    """Return the folder at `root`, a local path or a URL that fsspec knows, as a store.

    Raises StoreError for a URL that contains a secret or names no folder.
    """
    # Each kind is imported when it is needed: the libraries of remote stores take long, and the rest tells in a reader.
    if "://" not in root or root.startswith("file://"):
        from pathlib import Path

        from tokenloom.storage.stores.local import LocalStore

        return LocalStore(root if "://" in root else Path(root).expanduser().absolute())
    from tokenloom.storage.stores.remote import RemoteStore

    return RemoteStore(root)
