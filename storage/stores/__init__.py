"""Stores: local folders and object stores behind one interface; their uploads, retries and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenloom.errors import StoreError
from tokenloom.storage.stores.store import Store

if TYPE_CHECKING:
    from tokenloom.storage.stores.remote import RemoteStore
    from tokenloom.storage.stores.remote_retries import TimeLimits

__all__ = ["Store", "open_store", "remote_store"]


def open_store(root: str) -> Store:
    """Return the folder at `root`, a local path or a URL of s3://, gs:// or az://, as a store.

    Raises StoreError for a URL that contains a secret or names no folder.
    """
    # Each kind is imported when it is needed: the libraries of remote stores take long, and the rest tells in a reader.
    if "://" not in root or root.startswith("file://"):
        from pathlib import Path

        from tokenloom.storage.stores.local import LocalStore

        return LocalStore(root if "://" in root else Path(root).expanduser().absolute())
    return remote_store(root)


def remote_store(root: str, limits: TimeLimits | None = None) -> RemoteStore:
    """Return the store at a URL of an object store; raises StoreError for another URL, and as RemoteStore."""
    from tokenloom.storage.stores.remote import AzureStore, RemoteStore
    from tokenloom.storage.stores.remote_errors import redacted
    from tokenloom.storage.stores.remote_retries import TIME_LIMITS
    from tokenloom.storage.stores.s3 import S3Store
    from tokenloom.storage.stores.urls import AZURE, OBJECT_STORES, S3, scheme_of

    scheme = scheme_of(root)
    if scheme not in OBJECT_STORES or "::" in root:
        raise StoreError(
            f"store {redacted(root)}: a store is a local folder, or a URL such as s3://bucket/folder (extra [s3]), "
            "gs://bucket/folder (extra [gcs]) or az://container/folder (extra [azure])"
        )
    kind = S3Store if scheme in S3 else AzureStore if scheme in AZURE else RemoteStore
    return kind(root, limits or TIME_LIMITS)
