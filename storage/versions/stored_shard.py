"""A shard of a published version, of which parts are read by ranges: no map, no cache, no more than needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.formats.arrays import AnyArray, UInt64s
from tokenloom.storage.formats.classes import TEXT_CLASS
from tokenloom.storage.formats.manifest import DOCS, MASK, ShardEntry, beside
from tokenloom.storage.formats.shard import ShardHeader, checked_offsets, read_header
from tokenloom.storage.stores.store import BLOCK_BYTES, Store
from tokenloom.storage.versions.published import check_header, refuse_deleted, version_path

if TYPE_CHECKING:
    from tokenloom.storage.formats.document_table import DocumentColumns, DocumentTable


@dataclass(frozen=True)
class StoredShard:
    """A shard in its store: its entry in the manifest, and what is read of its files.

    All that reads raises StoreError if a file is missing or can't be read, VersionDeleted if gc deleted the version,
    and FormatError if a file is damaged, or not the one that the manifest lists.
    """

    store: Store
    version: str
    entry: ShardEntry

    @property
    def place(self) -> str:
        """The local path or URL of the shard, for messages."""
        return self.store.place(version_path(self.version, self.entry.name))

    @property
    def table_place(self) -> str:
        """The local path or URL of its document table, for messages."""
        return self.store.place(version_path(self.version, beside(self.entry.name, DOCS)))

    @cached_property
    def header(self) -> ShardHeader:
        """The header of the shard."""
        path = version_path(self.version, self.entry.name)
        with self._naming_missing(self.entry.name):
            header = read_header(partial(self.store.read_range, path), self.place)
        check_header(header, self.entry, self.place)
        return header

    @cached_property
    def offsets(self) -> UInt64s:
        """The document offsets, (num_documents + 1,), whose checksum is verified: 8 bytes a document are read."""
        data = self._read(self.entry.name, self.header.offsets_start, self.header.file_bytes)
        return checked_offsets(data, self.header, self.place)

    def tokens(self, start: int, end: int) -> AnyArray:
        """Return the tokens [start, end) of the shard, (end - start,), whose checksum is not verified."""
        first, width = self.header.tokens_start, self.header.token_bytes
        data = self._read(self.entry.name, first + start * width, first + end * width)
        return np.frombuffer(data, self.header.dtype)

    def classes(self, start: int, end: int) -> NDArray[np.uint8]:
        """Return the classes of the tokens [start, end), (end - start,), unverified; of plain text without a mask."""
        if not self.entry.has_mask:
            return np.full(end - start, TEXT_CLASS, np.uint8)
        return np.frombuffer(self._read(beside(self.entry.name, MASK), start, end), np.uint8)

    def table(self, num_inputs: int, block_bytes: int = BLOCK_BYTES) -> DocumentTable:
        """Open the document table; damage may be found later, when a batch is read.

        Args:
            num_inputs: how many inputs the version has.
            block_bytes: to read at once.
        """
        from tokenloom.storage.formats.document_table import DocumentTable  # pyarrow, which training does without

        path = version_path(self.version, beside(self.entry.name, DOCS))
        with self._naming_missing(beside(self.entry.name, DOCS)):
            return DocumentTable(self.store, path, self.entry.documents, num_inputs, block_bytes)

    def documents(self, table: DocumentTable, start: int, end: int) -> DocumentColumns:
        """Return the rows of its table that have one of the tokens [start, end); empty documents have none.

        Raises FormatError if the table is damaged, or not that of the shard.
        """
        first = int(np.searchsorted(self.offsets, np.uint64(start), side="right")) - 1
        last = int(np.searchsorted(self.offsets, np.uint64(end), side="left"))
        rows, offsets = table.rows(first, last), self.offsets[first : last + 1]
        if not (np.array_equal(rows.start, offsets[:-1]) and np.array_equal(rows.start + rows.num_tokens, offsets[1:])):
            raise self.wrong_table()
        return rows

    def wrong_table(self) -> FormatError:
        """Return the error for a document table that contradicts the shard."""
        return FormatError(f"{self.table_place}: it is not the document table of its shard; restore it")

    def _read(self, name: str, start: int, end: int) -> bytes:
        with self._naming_missing(name):
            return self.store.read_range(version_path(self.version, name), start, end)

    @contextmanager
    def _naming_missing(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            refuse_deleted(self.store, self.version)
            raise StoreError(
                f"{self.store.place(version_path(self.version, name))}: missing from a published version; "
                f"`tokenloom verify {self.store.root}@{self.version}` says what to do"
            ) from error
