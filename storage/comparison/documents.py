"""The documents of two versions, read side by side, so that all documents of a text, in A and in B, come together.

The shards of a split are consecutive ranges of keys, so the tables of a split, one after the other, are sorted by key.
Where a key depends on nothing but seed and content, and the seeds are equal, the tables of both versions have the same
order. One pass merges them, and holds a batch or two of each split of each version.

Elsewhere (other seeds, or duplicates are kept) the order differs. The contents are divided into parts, and both
versions are read once for each. Memory is bounded by the size of a part, and grows only with the number of copies of
the most frequent text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import FormatError
from tokenloom.storage.formats.document_table import DocumentColumns
from tokenloom.storage.formats.keys import order_keys
from tokenloom.storage.versions.document_tables import VersionTables

_READ_BYTES = 4 * 2**20  # one request reads this much; a batch of a table has 3 MB
_PART_ROWS = 2**22  # rows of both versions in a part, about 220 MB

Rows = NDArray[np.void]
Advance = Callable[[int], None]
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
_NO_ROWS: Rows = np.empty(0, ROW)


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


def have_one_order(a: Documents, b: Documents) -> bool:
    """Return whether equal texts have equal keys in both versions."""
    return a.key_seed is not None and a.key_seed == b.key_seed


def by_key(a: Documents, b: Documents, advance: Advance) -> Iterator[tuple[Rows, Rows]]:
    """Yield the documents of A and of B key range by key range; the versions must have one order.

    Args:
        a: the documents of one version.
        b: those of the other.
        advance: called with the number of rows that were read.
    """
    streams = [_Stream(side.batches(i), advance) for side in (a, b) for i in range(len(side.splits))]
    num_a = len(a.splits)
    while any(not stream.has_ended for stream in streams):
        end = min(stream.last_key for stream in streams if not stream.has_ended)
        taken = [stream.take_below(end) for stream in streams]
        yield _joined(taken[:num_a]), _joined(taken[num_a:])
        for stream in streams:
            if not stream.has_ended and stream.last_key == end:
                stream.read_more()
    rest = [stream.pending for stream in streams]
    yield _joined(rest[:num_a]), _joined(rest[num_a:])


class _Stream:
    """The documents of a split: those that were read and not yet taken are `pending`."""

    def __init__(self, batches: Iterator[Rows], advance: Advance) -> None:
        self._batches, self._advance = batches, advance
        self.pending, self.has_ended = _NO_ROWS, False
        self.read_more()

    @property
    def last_key(self) -> int:
        """The last key that was read."""
        return int(self.pending["key"][-1])

    def take_below(self, end: int) -> Rows:
        """Take the pending documents with a key below `end`; a later batch may have more of the key `end`."""
        count = int(np.searchsorted(self.pending["key"], np.uint64(end)))
        taken, self.pending = self.pending[:count], self.pending[count:]
        return taken

    def read_more(self) -> None:
        """Read a batch more, if there is one."""
        batch = next(self._batches, None)
        if batch is None:
            self.has_ended = True
        else:
            self._advance(len(batch))
            self.pending = np.concatenate((self.pending, batch))


def by_content(a: Documents, b: Documents, advance: Advance) -> Iterator[tuple[Rows, Rows]]:
    """Yield the documents of A and of B part by part of the contents, reading all tables for each; as by_key."""
    num_parts = max(1, -(-(a.num_documents + b.num_documents) // _PART_ROWS))
    for part in range(num_parts):
        yield _part(a, part, num_parts, advance), _part(b, part, num_parts, advance)


def _part(side: Documents, part: int, num_parts: int, advance: Advance) -> Rows:
    """Return the rows of one of `num_parts` parts of a version, which are of about equal size."""
    found = []
    for batch in (batch for split in range(len(side.splits)) for batch in side.batches(split)):
        top = (batch["content"][:, 0] >> np.uint64(32)).astype(np.int64)  # in [0, 2**32)
        found.append(batch[top * num_parts >> 32 == part])
        advance(len(found[-1]))
    return _joined(found)


def _joined(parts: Sequence[Rows]) -> Rows:
    return np.concatenate(parts) if parts else _NO_ROWS
