"""The document tables of a version: the document of a content, or of a row of an input, and where each comes from.

Where duplicates are removed, a content determines the split and the key of its document. The manifest then says which
shard may hold it, and a binary search reads a few batches of keys.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from tokenloom.storage.formats.arrays import UInt64s
from tokenloom.storage.formats.document_table import DocumentColumns, DocumentTable, Origin
from tokenloom.storage.formats.keys import order_keys, order_keys_with_duplicates, split_indices
from tokenloom.storage.formats.manifest import InputEntry, Manifest, ShardEntry
from tokenloom.storage.stores.store import BLOCK_BYTES, Store
from tokenloom.storage.versions.build_record import version_spec
from tokenloom.storage.versions.published import read_inputs
from tokenloom.storage.versions.stored_shard import StoredShard


class FoundDocument(Origin):
    """A document of a version: tokens [start, start + num_tokens) of a shard, and where it comes from."""

    split: str
    shard: str
    start: int
    num_tokens: int


class VersionTables:
    """The document tables of a version. All that reads raises FormatError or StoreError as StoredShard does.

    Args:
        store: the dataset's.
        manifest: the version's.

    Raises FormatError if the spec in the manifest has values that no build writes.
    """

    def __init__(self, store: Store, manifest: Manifest) -> None:
        self.store, self.manifest = store, manifest
        self.spec = version_spec(store, manifest)
        self.rules = self.spec.documents

    @property
    def reference(self) -> str:
        """STORE/DATASET@VERSION."""
        return f"{self.store.root}@{self.manifest.version}"

    @cached_property
    def inputs(self) -> list[InputEntry]:
        """The input files of the version."""
        return read_inputs(self.store, self.manifest)

    def split_of(self, content: UInt64s) -> str:
        """Return the split of a content, (2,)."""
        return self.spec.splits[int(split_indices(content[np.newaxis], self.spec.splits)[0])].name

    def find(self, content: UInt64s) -> list[FoundDocument]:
        """Return the document of a content, (2,), of a version without duplicates; [] if there is none."""
        return self._find(int(order_keys(content[np.newaxis], self.spec.seed)[0]), content)

    def find_copy(self, content: UInt64s, fingerprint: str, row: int) -> list[FoundDocument]:
        """Return the document of a row of an input with this content, (2,), of a version that keeps duplicates."""
        rows = np.array([row], dtype=np.uint64)
        keys = order_keys_with_duplicates(content[np.newaxis], self.spec.seed, fingerprint, rows)
        return [found for found in self._find(int(keys[0]), content) if found["row"] == row]

    def _find(self, key: int, content: UInt64s) -> list[FoundDocument]:
        split, digits = self.manifest.splits.get(self.split_of(content)), f"{key:016x}"
        for entry in split.shards if split else ():
            if entry.first_key and entry.last_key and entry.first_key <= digits <= entry.last_key:
                table = self.open(entry)
                found = table.find(key, content)
                return self.documents(entry, table.rows(found.start, found.stop)) if found else []
        return []

    def open(self, entry: ShardEntry, block_bytes: int = BLOCK_BYTES) -> DocumentTable:
        """Open the document table of a shard; `block_bytes` are read at once."""
        return StoredShard(self.store, self.manifest.version, entry).table(len(self.inputs), block_bytes)

    def documents(self, entry: ShardEntry, columns: DocumentColumns) -> list[FoundDocument]:
        """Return rows of the document table of a shard as documents."""
        return [
            {
                "split": entry.split,
                "shard": entry.name,
                "start": int(columns.start[i]),
                "num_tokens": int(columns.num_tokens[i]),
                **columns.origin(i, self.inputs),
            }
            for i in range(columns.num_rows)
        ]
