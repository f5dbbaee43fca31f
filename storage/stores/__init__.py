"""Stores: local folders and object stores behind one interface; their uploads, retries and errors."""

from __future__ import annotations

from tokenloom.errors import StoreError
from tokenloom.storage.stores.store import Store

__all__ = ["Store", "open_store"]


def open_store(root: str) -> Store:
    """Return the folder at `root`, a local path or a URL of s3://, gs:// or az://, as a store.

    Raises StoreError for a URL of another kind, one that contains a secret, or one that names no folder.
    """
    # Each kind is imported when it is needed: the libraries of remote stores take long, and the rest tells in a reader.
    if "://" not in root or root.startswith("file://"):
        from pathlib import Path

        from tokenloom.storage.stores.local import LocalStore

        return LocalStore(root if "://" in root else Path(root).expanduser().absolute())
    from tokenloom.storage.stores.remote import RemoteStore
    from tokenloom.storage.stores.remote_errors import redacted
    from tokenloom.storage.stores.urls import is_object

    if not is_object(root):
        raise StoreError(
            f"store {redacted(root)}: a store is a local folder, or a URL such as s3://bucket/folder (extra [s3]), "
            "gs://bucket/folder (extra [gcs]) or az://container/folder (extra [azure])"
        )
    return RemoteStore(root)
