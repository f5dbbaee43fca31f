"""Open the document table of a shard of a published version."""

from __future__ import annotations

from tokenloom.storage.formats.document_table import DocumentTable
from tokenloom.storage.formats.shard_entries import ShardEntry
from tokenloom.storage.stores.store import Store
from tokenloom.storage.stores.store_file import BLOCK_BYTES
from tokenloom.storage.versions.published import version_path
from tokenloom.storage.versions.shards import naming_missing


def open_document_table(
    store: Store, version: str, entry: ShardEntry, num_inputs: int, block_bytes: int = BLOCK_BYTES
) -> DocumentTable:
    """Open the document table of a shard.

    Args:
        store: the dataset's store.
        version: the name of the version.
        entry: the shard.
        num_inputs: how many inputs the version has.
        block_bytes: to read at once.

    Raises:
        StoreError: it is missing.
        FormatError: it is damaged; also later, when a batch is read.
    """
    with naming_missing(store, version, entry.docs_name):
        return DocumentTable(store, version_path(version, entry.docs_name), entry.documents, num_inputs, block_bytes)
