"""Choose about 1,000 documents of a published version by hash, for `tokenloom verify --deep` to encode them again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tokenloom.storage.formats.documents import column_values
from tokenloom.storage.formats.keys import check_hashes, content_digits, hash_of_ids
from tokenloom.storage.versions.stored_shard import StoredShard

JOB_SAMPLES = 50  # documents that a job encodes again


class ChosenDocument(NamedTuple):
    """A document that was chosen: its place in inputs and shard, its content, and a hash of ids and classes there."""

    input_index: int
    row: int
    start: int
    content: str  # 32 hexadecimal digits
    ids_hash: int
    shard_name: str


def choose_documents(batch: pa.RecordBatch, shard: StoredShard, max_hash: int) -> Iterator[ChosenDocument]:
    """Yield the documents of a batch of a shard's document table whose check_hashes are at most `max_hash`."""
    content = column_values(batch, "content")
    chosen = np.flatnonzero(check_hashes(content[:, 0], column_values(batch, "row")) <= max_hash)
    columns = [column_values(batch, name)[chosen].tolist() for name in ("input", "row", "start", "num_tokens")]
    for (input_index, row, start, num_tokens), digest in zip(zip(*columns, strict=True), content[chosen], strict=True):
        end = start + num_tokens
        ids_hash = hash_of_ids(shard.tokens(start, end), shard.classes(start, end) if shard.entry.has_mask else None)
        yield ChosenDocument(input_index, row, start, content_digits(digest), ids_hash, shard.entry.name)
