"""The store's own clock: the time that it gives to a file written now, never the clock of this machine."""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping

from tokenloom.errors import StoreError
from tokenloom.storage.stores.store import TMP, Store

_KEYS = ("LastModified", "last_modified", "mtime", "updated", "modified", "created")  # of the libraries of fsspec


def store_time(store: Store) -> float:
    """Return the time by the store's clock, in seconds since 1970: write a probe into work/tmp, and delete it.

    Raises StoreError if the store cannot be written, or does not say when a file was written.
    """
    import uuid  # a reader does not need it

    probe = f"{TMP}/clock.{uuid.uuid4().hex}"
    store.replace(probe, b"", durable=False)
    try:
        modified = store.modified(probe)
    finally:
        store.remove(probe)
    if modified is None:
        raise StoreError(f"{store.place(probe)}: deleted as soon as it was written; run the same command again")
    return modified


def readers_time(store: Store) -> float:
    """Return store_time, or the nearly equal time of this machine if the store can't be written."""
    try:
        return store_time(store)
    except StoreError:
        return time.time()


def modified_of(info: Mapping[str, object]) -> float | None:
    """Return when a file was written by fsspec's info of it, in seconds since 1970; None if it does not say."""
    for value in filter(None, map(info.get, _KEYS)):
        if isinstance(value, str):
            value = datetime.datetime.fromisoformat(value)
        if isinstance(value, datetime.datetime):
            aware = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
            return aware.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return None
