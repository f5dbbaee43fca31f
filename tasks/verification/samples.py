"""Documents chosen by hash to be encoded again: by a build before it publishes, and by `tokenloom verify --deep`."""

from __future__ import annotations

from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from tokenloom.storage.formats.keys import sample_keys

NUM_SAMPLES = 1000  # of a version
JOB_SAMPLES = 50  # of a task that encodes some again
SAMPLE_DTYPE = np.dtype(
    [
        ("sample_key", "<u8"),
        ("content_high", "<u8"),
        ("content_low", "<u8"),
        ("input_index", "<u4"),
        ("row", "<u8"),
        ("start", "<u8"),
        ("num_tokens", "<u4"),
        ("ids", "<u8"),  # hash_of_ids of what stands in the shard; 0 where that is read later
    ]
)


def num_proposed(num_documents: int, num_all: int) -> int:
    """Return how many documents a shard of `num_documents` proposes, of `num_all` in the version.

    Four times its share and some: then the least hashes of all documents are among what the shards propose.
    """
    return min(NUM_SAMPLES, -(-4 * NUM_SAMPLES * num_documents // num_all) + 64)


class Sampler:
    """Keeps the documents with the least hashes of those that it is shown.

    Args:
        count: how many to keep.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self.rows = np.empty(0, SAMPLE_DTYPE)

    def take(self, content: NDArray[np.uint64], **columns: NDArray[Any]) -> None:
        """Look at n documents: `content` (n, 2), and the columns input_index, row, start and num_tokens, (n,) each."""
        keys = sample_keys(content)
        count = min(self._count, len(keys))
        if not count:
            return
        chosen = np.argpartition(keys, count - 1)[:count]
        rows = np.zeros(count, SAMPLE_DTYPE)
        rows["sample_key"] = keys[chosen]
        rows["content_high"], rows["content_low"] = content[chosen].T
        for name, values in columns.items():
            rows[name] = values[chosen]
        both = np.concatenate([self.rows, rows])
        self.rows = both[np.argsort(both["sample_key"], kind="stable")][: self._count]


def sample_field(sample: tuple[int, ...], name: str) -> int:
    """Return a field of a row of SAMPLE_DTYPE that is a tuple."""
    assert SAMPLE_DTYPE.names is not None
    return sample[SAMPLE_DTYPE.names.index(name)]


def hash_of_ids(ids: NDArray[Any]) -> int:
    """Return a hash of the ids of a document, of their stored type."""
    return xxhash.xxh3_64_intdigest(np.ascontiguousarray(ids).data.cast("B"))
