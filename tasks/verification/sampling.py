"""Choose about 1,000 documents of a published version by hash, for `tokenloom verify --deep` to encode them again."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tokenloom.storage.formats.documents import column_values
from tokenloom.storage.formats.keys import check_hashes, content_digits

JOB_SAMPLES = 50  # documents that a job encodes again


class ChosenDocument(NamedTuple):
    """A document that was chosen: its place in the inputs, its tokens in a shard, its content in 32 digits."""

    input_index: int
    row: int
    start: int
    num_tokens: int
    content: str
    shard_name: str


def choose_documents(batch: pa.RecordBatch, shard_name: str, max_hash: int) -> list[ChosenDocument]:
    """Return the documents of a batch of a document table whose check_hashes are at most `max_hash`."""
    content = column_values(batch, "content")
    chosen = np.flatnonzero(check_hashes(content[:, 0], column_values(batch, "row")) <= max_hash)
    columns = [column_values(batch, name)[chosen].tolist() for name in ("input", "row", "start", "num_tokens")]
    places = zip(*columns, map(content_digits, content[chosen]), strict=True)
    return [ChosenDocument._make((*place, shard_name)) for place in places]
