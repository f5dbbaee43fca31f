"""Open the document table of a shard of a published version."""

from __future__ import annotations

from tokenloom.errors import StoreError
from tokenloom.storage.formats.document_table import DocumentTable
from tokenloom.storage.formats.shard_entries import ShardEntry
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import version_path


def open_document_table(store: Store, version: str, entry: ShardEntry) -> DocumentTable:
    """Open the document table of a shard; raise StoreError if it is missing, FormatError if it is damaged."""
    path = version_path(version, entry.docs_name)
    try:
        return DocumentTable(store, path, entry.documents)
    except FileNotFoundError as error:
        raise StoreError(
            f"{store.place(path)}: missing from a published version; `tokenloom verify {store.root}@{version}` says "
            "what to do"
        ) from error
