"""The documents of a version as rows of numbers, read from its document tables batch by batch.

The shards of a split are consecutive ranges of keys, so the tables of a split, one after the other, are sorted by key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import FormatError
from tokenloom.storage.formats.document_table import DocumentColumns
from tokenloom.storage.formats.keys import order_keys
from tokenloom.storage.formats.manifest import Manifest
from tokenloom.storage.formats.version_files import InputEntry
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import read_inputs
from tokenloom.storage.versions.stored_shard import StoredShard
from tokenloom.storage.versions.version_spec import version_spec

_READ_BYTES = 4 * 2**20  # in one request: a batch of a table has 3 MB

Rows = NDArray[np.void]
ROW = np.dtype(
    [
        ("content", "<u8", (2,)),  # high and low half
        ("key", "<u8"),
        ("row", "<u8"),  # in the input file
        ("num_tokens", "<u4"),
        ("input", "<u4"),  # index into the version's inputs
        ("shard", "<u4"),  # in its split
        ("split", "<u4"),  # index into the version's splits
    ]
)


class Documents(Protocol):
    """All documents of a version, read split by split."""

    @property
    def splits(self) -> Sequence[str]:
        """The names of the splits; `split` of a row counts them."""

    @property
    def input_sources(self) -> Sequence[str]:
        """The source of each input; `input` of a row counts them."""

    @property
    def key_seed(self) -> int | None:
        """The seed, if keys depend on nothing but it and the content; None if duplicates are kept."""

    @property
    def num_documents(self) -> int:
        """The number of documents in all splits."""

    def batches(self, split: int) -> Iterator[Rows]:
        """Yield the documents of a split, sorted by key, some at a time."""


@dataclass(frozen=True)
class VersionDocuments:
    """The documents of a published version; a Documents.

    Raises FormatError or StoreError, also later, if a table is damaged or can't be read.
    """

    store: Store
    manifest: Manifest
    inputs: Sequence[InputEntry]

    @classmethod
    def of(cls, store: Store, manifest: Manifest) -> VersionDocuments:
        """Return the documents of a version; reads its list of inputs."""
        return cls(store, manifest, read_inputs(store, manifest))

    @property
    def splits(self) -> Sequence[str]:
        """The names of the splits."""
        return list(self.manifest.splits)

    @property
    def input_sources(self) -> Sequence[str]:
        """The source of each input."""
        return [entry.source for entry in self.inputs]

    @cached_property
    def key_seed(self) -> int | None:
        """The seed, None if duplicates are kept."""
        spec = version_spec(self.store, self.manifest)
        return spec.seed if spec.documents.deduplicate else None

    @property
    def num_documents(self) -> int:
        """The number of documents."""
        return self.manifest.num_documents

    def batches(self, split: int) -> Iterator[Rows]:
        """Yield the documents of a split, sorted by key, up to 65,536 at a time."""
        last_key = 0
        for number, shard in enumerate(self.manifest.splits[self.splits[split]].shards):
            stored = StoredShard(self.store, self.manifest.version, shard)
            with stored.table(len(self.inputs), _READ_BYTES) as table:
                for columns in table.batches():
                    self._check(columns, last_key, stored.table_place)
                    last_key = int(columns.key[-1])
                    yield _rows(columns, number, split)

    def _check(self, columns: DocumentColumns, last_key: int, place: str) -> None:
        """Raise FormatError if rows would be counted wrongly; `last_key` is that of the row before them."""
        keys, seed = columns.key, self.key_seed
        if int(keys[0]) < last_key or (keys[1:] < keys[:-1]).any():
            raise FormatError(f"{place}: its rows are not sorted by key; restore it")
        if seed is not None and (order_keys(columns.content, seed) != keys).any():
            raise FormatError(f"{place}: its keys are not those of its contents; restore it")


def _rows(columns: DocumentColumns, shard: int, split: int) -> Rows:
    rows: Rows = np.empty(columns.num_rows, ROW)
    for name in ("content", "key", "row", "num_tokens", "input"):
        rows[name] = getattr(columns, name)
    rows["shard"], rows["split"] = shard, split
    return rows
