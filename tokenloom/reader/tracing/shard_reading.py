"""The samples and documents of one shard, read from the store by ranges.

It reads the header, the document offsets (8 bytes a document, whose checksum is verified), the batches of the document
table that are asked for (65,536 documents each), and tokens only for text.
"""

from __future__ import annotations

import numpy as np

from tokenloom.reader.shards.split_samples import SplitSamples
from tokenloom.storage.cache.cache_settings import default_cache_folder
from tokenloom.storage.formats.document_table import DocumentColumns, DocumentTable
from tokenloom.storage.packing.plan_file import kept_plan
from tokenloom.storage.packing.plans import ShardPlan
from tokenloom.storage.versions.stored_shard import StoredShard


class ShardReading:
    """A shard of a split, to look up its samples and documents; errors as StoredShard.

    Args:
        data: the samples of the split.
        index: the shard's, in the split.
    """

    def __init__(self, data: SplitSamples, index: int) -> None:
        files = data.files
        self._data, self._index = data, index
        self.shard = StoredShard(files.store, files.manifest.version, files.entries[index])

    def plan(self) -> ShardPlan:
        """Return where the samples of the shard are; raise FormatError if they are not as many as were counted."""
        data, shard = self._data, self.shard
        plan = kept_plan(default_cache_folder(), data.packing, data.seq_len, shard.header, shard.offsets)
        if len(plan) != data.counts[self._index]:
            raise data.wrong_count(self._index, len(plan), shard.place)
        return plan

    def documents(self, table: DocumentTable, start: int, end: int) -> DocumentColumns:
        """Return the documents that have one of the tokens [start, end), in order; empty documents have none.

        Raises FormatError if the table is damaged, or not that of the shard.
        """
        offsets = self.shard.offsets
        first = int(np.searchsorted(offsets, np.uint64(start), side="right")) - 1
        last = int(np.searchsorted(offsets, np.uint64(end), side="left"))
        found = table.rows(first, last)
        self.shard.check_rows(found, offsets[first : last + 1])
        return found
