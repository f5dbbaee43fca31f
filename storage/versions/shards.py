"""Read the header and the tokens of a shard of a published version by ranges, for the reader without pyarrow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from tokenloom.errors import StoreError
from tokenloom.storage.formats.arrays import AnyArray
from tokenloom.storage.formats.shard import ShardHeader, read_header
from tokenloom.storage.formats.shard_entries import ShardEntry
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import check_header, version_path
from tokenloom.storage.versions.retirement import refuse_deleted


@contextmanager
def naming_missing(store: Store, version: str, name: str) -> Iterator[None]:
    """Raise StoreError if the block misses the file `name` of a version; VersionDeleted if gc deleted the version."""
    try:
        yield
    except FileNotFoundError as error:
        refuse_deleted(store, version)
        raise StoreError(
            f"{store.place(version_path(version, name))}: missing from a published version; "
            f"`tokenloom verify {store.root}@{version}` says what to do"
        ) from error


def read_shard_header(store: Store, version: str, entry: ShardEntry) -> ShardHeader:
    """Return the header of a shard; raise StoreError if it is missing, FormatError if it is not the listed one."""
    path = version_path(version, entry.name)
    with naming_missing(store, version, entry.name):
        header = read_header(store, path)
    check_header(header, entry, store.place(path))
    return header


def read_shard_tokens(
    store: Store, version: str, entry: ShardEntry, header: ShardHeader, start: int, end: int
) -> AnyArray:
    """Return the tokens [start, end) of a shard, (end - start,), whose checksum is not verified; errors as above."""
    first, width = header.tokens_start, header.token_bytes
    with naming_missing(store, version, entry.name):
        data = store.read_range(version_path(version, entry.name), first + start * width, first + end * width)
    return np.frombuffer(data, header.dtype)
