"""The document tables of a version: the document of a content, or of a row of an input, and where each comes from.

Where duplicates are removed, a content determines the split and the key of its document. The manifest then says which
shard may hold it, and a binary search reads a few batches of keys.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from tokenloom.storage.formats.arrays import UInt64s
from tokenloom.storage.formats.document_table import DocumentColumns, DocumentTable, Origin
from tokenloom.storage.formats.keys import copy_keys, order_keys, order_keys_with_duplicates, split_indices
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

    @property
    def key_seed(self) -> int | None:
        """The seed of keys that depend on it and the content alone; None if a content may have several."""
        return self.spec.seed if self.rules.deduplicate and self.rules.max_copies == 1 else None

    @cached_property
    def inputs(self) -> list[InputEntry]:
        """The input files of the version."""
        return read_inputs(self.store, self.manifest)

    def split_of(self, content: UInt64s) -> str:
        """Return the split of a content, (2,)."""
        return self.spec.splits[int(split_indices(content[np.newaxis], self.spec.splits)[0])].name

    def find(self, content: UInt64s) -> list[FoundDocument]:
        """Return the document of a content, (2,), of a version without duplicates, then its further copies."""
        return self._find(order_keys(content[np.newaxis], self.spec.seed), content)

    def find_copy(self, content: UInt64s, fingerprint: str, row: int) -> list[FoundDocument]:
        """Return the document of a row of an input with this content, (2,), of a version that keeps duplicates."""
        rows = np.array([row], dtype=np.uint64)
        keys = order_keys_with_duplicates(content[np.newaxis], self.spec.seed, fingerprint, rows)
        return [found for found in self._find(keys, content) if found["row"] == row]

    def _find(self, key: UInt64s, content: UInt64s) -> list[FoundDocument]:
        """Return the documents of a content with this order key, (1,), and their further copies."""
        split, found = self.manifest.splits.get(self.split_of(content)), list[FoundDocument]()
        for each in self._copy_keys(key).tolist():
            for entry in split.shards if split else ():
                if entry.first_key and entry.last_key and entry.first_key <= f"{each:016x}" <= entry.last_key:
                    table = self.open(entry)
                    rows = table.find(each, content)
                    found += self.documents(entry, table.rows(rows.start, rows.stop)) if rows else []
        return found

    def copy_number(self, columns: DocumentColumns, i: int) -> int:
        """Return the number of document i among its copies, 0 for the first."""
        content, seed, rows = columns.content[i : i + 1], self.spec.seed, columns.row[i : i + 1]
        if self.rules.deduplicate:
            own = order_keys(content, seed)
        else:
            own = order_keys_with_duplicates(content, seed, self.inputs[int(columns.input[i])].fingerprint, rows)
        return int(np.argmax(self._copy_keys(own) == columns.key[i]))

    def _copy_keys(self, key: UInt64s) -> UInt64s:
        """Return the order keys of all copies of a document, the first of which has this key, (1,)."""
        return np.append(key, copy_keys(key, np.arange(1, self.rules.max_copies, dtype=np.uint64)))

    def open(self, entry: ShardEntry, block_bytes: int = BLOCK_BYTES) -> DocumentTable:
        """Open the document table of a shard; `block_bytes` are read at once."""
        return StoredShard(self.store, self.manifest.version, entry).table(len(self.inputs), block_bytes)

    def documents(self, entry: ShardEntry, columns: DocumentColumns) -> list[FoundDocument]:
        """Return rows of the document table of a shard as documents."""
        found: list[FoundDocument] = [
            {
                "split": entry.split,
                "shard": entry.name,
                "start": int(columns.start[i]),
                "num_tokens": int(columns.num_tokens[i]),
                **columns.origin(i, self.inputs),
            }
            for i in range(columns.num_rows)
        ]
        for i, document in enumerate(found if self.rules.max_copies > 1 else ()):
            document["copy"] = self.copy_number(columns, i)
        return found
