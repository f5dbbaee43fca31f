"""The documents and tokens of one shard, read from the store by ranges: no map, no cache, no more than needed.

It reads the header, the document offsets (8 bytes a document, whose checksum is verified), the batches of the document
table that are asked for (65,536 documents each), and tokens only for text.
"""

from __future__ import annotations

import numpy as np

from tokenloom.errors import FormatError
from tokenloom.reader.shards.split_samples import SplitSamples
from tokenloom.storage.cache.cache_settings import default_cache_folder
from tokenloom.storage.formats.arrays import AnyArray
from tokenloom.storage.formats.document_table import DocumentColumns, DocumentTable
from tokenloom.storage.packing.counting import read_header_and_offsets
from tokenloom.storage.packing.plan_file import kept_plan
from tokenloom.storage.packing.plans import ShardPlan
from tokenloom.storage.versions.published import version_path
from tokenloom.storage.versions.shards import read_shard_tokens
from tokenloom.storage.versions.tables import open_document_table


class ShardReading:
    """A shard of a split, to look up its documents.

    Args:
        data: the samples of the split.
        index: the shard's, in the split.

    Raises:
        StoreError: the shard is missing or can't be read.
        FormatError: it is damaged.
    """

    def __init__(self, data: SplitSamples, index: int) -> None:
        files = data.files
        self._data, self._index, self._store = data, index, files.store
        self.entry = files.entries[index]
        self._version = files.manifest.version
        self._path = version_path(self._version, self.entry.name)
        self._header, self._offsets = read_header_and_offsets(files.store, files.manifest, self.entry)

    def plan(self) -> ShardPlan:
        """Return where the samples of the shard are; raise FormatError if they are not as many as were counted."""
        data = self._data
        plan = kept_plan(default_cache_folder(), data.packing, data.seq_len, self._header, self._offsets)
        if len(plan) != data.counts[self._index]:
            raise data.wrong_count(self._index, len(plan), self._store.place(self._path))
        return plan

    def table(self, num_inputs: int) -> DocumentTable:
        """Open the document table of a version with so many inputs; errors as open_document_table."""
        return open_document_table(self._store, self._version, self.entry, num_inputs)

    def documents(self, table: DocumentTable, start: int, end: int) -> DocumentColumns:
        """Return the documents that have one of the tokens [start, end), in order; empty documents have none.

        Raises FormatError if the table is damaged, or not that of the shard.
        """
        first = int(np.searchsorted(self._offsets, np.uint64(start), side="right")) - 1
        last = int(np.searchsorted(self._offsets, np.uint64(end), side="left"))
        found = table.rows(first, last)
        ends = found.start + found.num_tokens
        if not np.array_equal(found.start, self._offsets[first:last]) or not np.array_equal(
            ends, self._offsets[first + 1 : last + 1]
        ):
            place = self._store.place(version_path(self._version, self.entry.docs_name))
            raise FormatError(f"{place}: it is not the document table of its shard; restore it")
        return found

    def tokens(self, start: int, end: int) -> AnyArray:
        """Return the tokens [start, end) of the shard, (end - start,)."""
        return read_shard_tokens(self._store, self._version, self.entry, self._header, start, end)
