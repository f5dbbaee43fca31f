"""Choose documents of a published version by hash, for `tokenloom verify --deep` to encode them again.

Each shard proposes the documents with its smallest hashes; the smallest of all are chosen. So the choice depends
only on the contents, and no process has to see all documents.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from tokenloom.storage.formats.keys import sample_keys

NUM_SAMPLES = 1000  # of a version
JOB_SAMPLES = 50  # of a job that encodes some again
_DTYPE = np.dtype(
    [
        ("sample_key", "<u8"),
        ("content_high", "<u8"),
        ("content_low", "<u8"),
        ("input_index", "<u4"),
        ("row", "<u8"),
        ("start", "<u8"),
        ("num_tokens", "<u4"),
    ]
)


@dataclass(frozen=True, order=True)
class SampledDocument:
    """A document that was chosen: its hash and content, its place in the inputs, its tokens in a shard."""

    sample_key: int
    content: str  # 32 hexadecimal digits
    input_index: int
    row: int
    start: int
    num_tokens: int
    shard_name: str


class Sampler:
    """Keeps the documents with the smallest hashes among those passed to it.

    Args:
        num_samples: how many to keep.
    """

    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples
        self._rows = np.empty(0, _DTYPE)

    def take(
        self,
        content: NDArray[np.uint64],
        *,
        input_index: NDArray[np.uint32],
        row: NDArray[np.uint64],
        start: NDArray[np.uint64],
        num_tokens: NDArray[np.uint32],
    ) -> None:
        """Look at n documents: `content` is (n, 2), the others are (n,)."""
        keys = sample_keys(content)
        count = min(self._num_samples, len(keys))
        if not count:
            return
        chosen = np.argpartition(keys, count - 1)[:count]
        rows = np.zeros(count, _DTYPE)
        rows["sample_key"] = keys[chosen]
        rows["content_high"], rows["content_low"] = content[chosen].T
        rows["input_index"], rows["row"] = input_index[chosen], row[chosen]
        rows["start"], rows["num_tokens"] = start[chosen], num_tokens[chosen]
        both = np.concatenate([self._rows, rows])
        self._rows = both[np.argsort(both["sample_key"], kind="stable")][: self._num_samples]

    def documents(self, shard_name: str) -> list[SampledDocument]:
        """Return the kept documents, which are those of a shard."""
        found = []
        for row in self._rows:
            key, high, low, input_index, number, start, num_tokens = row.tolist()
            content = f"{high:016x}{low:016x}"
            found.append(SampledDocument(key, content, input_index, number, start, num_tokens, shard_name))
        return found


def num_proposed(num_documents: int, num_all_documents: int) -> int:
    """Return how many documents a shard of `num_documents` proposes, of `num_all_documents` in the version.

    This is four times its share and some more: so the smallest hashes of all documents are among those proposed.
    """
    return min(NUM_SAMPLES, -(-4 * NUM_SAMPLES * num_documents // num_all_documents) + 64)


def choose_documents(proposed: Iterable[SampledDocument]) -> dict[int, list[SampledDocument]]:
    """Return the NUM_SAMPLES documents with the smallest hashes by the index of their input, in the order of rows."""
    by_input: defaultdict[int, list[SampledDocument]] = defaultdict(list)
    for document in sorted(proposed)[:NUM_SAMPLES]:
        by_input[document.input_index].append(document)
    return {index: sorted(by_input[index], key=lambda document: document.row) for index in sorted(by_input)}


def hash_of_ids(ids: NDArray[np.unsignedinteger]) -> int:
    """Return a hash of the ids of a document, in their stored type."""
    return xxhash.xxh3_64_intdigest(np.ascontiguousarray(ids).data.cast("B"))
