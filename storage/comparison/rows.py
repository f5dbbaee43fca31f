"""The documents of a version as rows of numbers, read from its document tables batch by batch.

The shards of a split are consecutive ranges of keys, so the tables of a split, one after the other, are sorted by key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import FormatError
from tokenloom.storage.formats.document_table import DocumentColumns
from tokenloom.storage.formats.keys import order_keys
from tokenloom.storage.versions.document_tables import VersionTables

_READ_BYTES = 4 * 2**20  # one request reads this much; a batch of a table has 3 MB

Rows = NDArray[np.void]
ROW = np.dtype(
    [
        ("content", "<u8", (2,)),  # high and low half
        ("key", "<u8"),
        ("row", "<u8"),  # counted in the input file
        ("classes", "<u8"),  # a hash of those of its tokens, 0 in a version without masks
        ("num_tokens", "<u4"),
        ("input", "<u4"),  # index into the version's inputs
        ("shard", "<u4"),  # counted in its split
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


class VersionDocuments:
    """The documents of a published version; a Documents.

    Args:
        tables: the version's document tables.

    Raises FormatError or StoreError, also later, if a table is damaged or can't be read.
    """

    def __init__(self, tables: VersionTables) -> None:
        self.tables = tables
        self.splits: Sequence[str] = list(tables.manifest.splits)
        self.input_sources: Sequence[str] = [entry.source for entry in tables.inputs]
        self.key_seed = tables.spec.seed if tables.rules.deduplicate else None
        self.num_documents = tables.manifest.num_documents

    def batches(self, split: int) -> Iterator[Rows]:
        """Yield the documents of a split, sorted by key, up to 65,536 at a time."""
        last_key = 0
        for number, entry in enumerate(self.tables.manifest.splits[self.splits[split]].shards):
            table = self.tables.open(entry, _READ_BYTES)
            for columns in table.batches():
                self._check(columns, last_key, table.place)
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
    rows["classes"] = 0 if columns.classes is None else columns.classes
    return rows
