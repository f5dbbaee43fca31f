"""The document tables of a version: one document by its key, or all of them, row by row.

Where duplicates are removed, a content determines the split and the key of its document. The manifest then says which
shard may hold it, and a binary search reads a few batches of keys. Otherwise all tables of the split are read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from tokenloom.storage.formats.arrays import UInt64s
from tokenloom.storage.formats.document_table import DocumentColumns, DocumentTable
from tokenloom.storage.formats.keys import (
    content_digits,
    order_keys,
    order_keys_with_duplicates,
    split_indices,
)
from tokenloom.storage.formats.manifest import Manifest
from tokenloom.storage.formats.shard_entries import ShardEntry
from tokenloom.storage.formats.version_files import InputEntry
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import read_inputs
from tokenloom.storage.versions.stored_shard import StoredShard
from tokenloom.storage.versions.version_spec import version_spec
from tokenloom.tasks.lookup.outcomes import FoundDocument
from tokenloom.tasks.running import progress

_READERS = 8  # tables read at the same time
Matches = Callable[[DocumentColumns], NDArray[np.bool_]]  # which rows of a batch are wanted, (n,)


class VersionTables:
    """The document tables of a version.

    Args:
        store: the dataset's.
        manifest: the version's.

    Raises FormatError if the spec in the manifest has values that no build writes.
    """

    def __init__(self, store: Store, manifest: Manifest) -> None:
        self.store, self.manifest = store, manifest
        self.spec = version_spec(store, manifest)
        self.rules = self.spec.documents

    @cached_property
    def inputs(self) -> list[InputEntry]:
        """The input files of the version."""
        return read_inputs(self.store, self.manifest)

    def split_of(self, content: UInt64s) -> str:
        """Return the split of a content, (2,)."""
        return self.spec.splits[int(split_indices(content[np.newaxis], self.spec.splits)[0])].name

    def find(self, content: UInt64s) -> list[FoundDocument]:
        """Return the document of a content, (2,), of a version without duplicates; none if it has no such document."""
        return self._find(int(order_keys(content[np.newaxis], self.spec.seed)[0]), content)

    def find_copy(self, content: UInt64s, fingerprint: str, row: int) -> list[FoundDocument]:
        """Return the document of a row of an input with this content, (2,), of a version that keeps duplicates."""
        rows = np.array([row], dtype=np.uint64)
        keys = order_keys_with_duplicates(content[np.newaxis], self.spec.seed, fingerprint, rows)
        found = self._find(int(keys[0]), content)
        return [document for document in found if document["row"] == row]

    def _find(self, key: int, content: UInt64s) -> list[FoundDocument]:
        split = self.manifest.splits.get(self.split_of(content))
        if split is None:
            return []
        digits = f"{key:016x}"
        first_keys = [(first, i) for i, row in enumerate(split.shards.rows) if (first := row.get("first_key"))]
        place = bisect_right(first_keys, digits, key=itemgetter(0)) - 1
        if place < 0:
            return []
        entry = split.shards[first_keys[place][1]]
        if digits > str(entry.last_key):
            return []
        with self._open(entry) as table:
            found = table.find(key, content)
            return self._documents(entry, table.rows(found.start, found.stop)) if found else []

    def scan(self, matches: Matches, splits: Sequence[str], what: str) -> list[FoundDocument]:
        """Return the documents that match, of all tables of some splits, and report progress.

        Args:
            matches: whether each row of a batch does.
            splits: names of splits; others are ignored.
            what: names the step for people.
        """
        entries = [entry for name in splits if (split := self.manifest.splits.get(name)) for entry in split.shards]
        progress.report(progress.StepStarted(what, sum(entry.documents for entry in entries)))
        with ThreadPoolExecutor(_READERS) as readers:
            return [found for each in readers.map(lambda entry: self._scan(entry, matches), entries) for found in each]

    def _scan(self, entry: ShardEntry, matches: Matches) -> list[FoundDocument]:
        found: list[FoundDocument] = []
        with self._open(entry) as table:
            for columns in table.batches():
                wanted = np.flatnonzero(matches(columns))
                for i in wanted.tolist():
                    found += self._documents(entry, columns.slice(i, i + 1))
                progress.report(progress.Advanced(num_documents=columns.num_rows, done=columns.num_rows))
        return found

    def _open(self, entry: ShardEntry) -> DocumentTable:
        return StoredShard(self.store, self.manifest.version, entry).table(len(self.inputs))

    def _documents(self, entry: ShardEntry, columns: DocumentColumns) -> list[FoundDocument]:
        return [self._document(entry, columns, i) for i in range(columns.num_rows)]

    def _document(self, entry: ShardEntry, columns: DocumentColumns, i: int) -> FoundDocument:
        number = int(columns.input[i])
        found: FoundDocument = {
            "split": entry.name.partition("/")[0],
            "shard": entry.name,
            "start": int(columns.start[i]),
            "num_tokens": int(columns.num_tokens[i]),
            "source": self.inputs[number].source,
            "path": self.inputs[number].path,
            "row": int(columns.row[i]),
            "content": content_digits(columns.content[i]),
        }
        if columns.ids is not None:
            found["id"] = columns.ids[i].as_py()
        return found


def is_any_of(contents: Iterable[UInt64s]) -> Matches:
    """Return whether rows have one of some contents, (2,) each."""
    wanted = list(contents)

    def matches(columns: DocumentColumns) -> NDArray[np.bool_]:
        found = np.zeros(columns.num_rows, dtype=bool)
        for content in wanted:
            found |= (columns.content == content).all(axis=1)
        return found

    return matches
