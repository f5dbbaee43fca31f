"""Versions of many documents that are made up while they are read, to compare two of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tokenloom.storage.comparison import FATES, ROW, Documents, Rows
from tokenloom.storage.formats.arrays import UInt64s
from tokenloom.storage.formats.document_table import BATCH_ROWS
from tokenloom.storage.formats.keys import KEY_SPACE, Purpose, mix64


def simulated_documents(num_ids: int, is_new: bool, key_seed: int | None) -> Documents:
    """Return the older or newer version of about `num_ids` documents.

    The ids [0, num_ids) are in the order of the keys. A hash of an id says in which split each version has it, if any.
    """

    def batches(split: int) -> Iterator[Rows]:
        for start in range(0, num_ids, BATCH_ROWS):
            ids = np.arange(start, min(start + BATCH_ROWS, num_ids), dtype=np.uint64)
            fate = _fates_of(ids)
            is_validation = (fate >= 10 + is_new) & (fate < 20 + is_new)
            is_there = fate != (2 if is_new else 1)  # 1 was added, 2 removed
            ids = ids[is_there & (is_validation == bool(split))]
            rows: Rows = np.empty(len(ids), ROW)
            rows["key"] = ids * np.uint64(KEY_SPACE // num_ids)
            rows["content"][:, 0], rows["content"][:, 1] = mix64(Purpose.ORDER, 0, [ids]), ids
            rows["row"], rows["shard"], rows["split"] = ids, 0, split
            rows["input"], rows["num_tokens"] = ids % np.uint64(3), 100 + ids % np.uint64(1000)
            rows["classes"] = 0
            yield rows

    return Documents(("train", "validation"), ("web", "books", "code"), key_seed, num_ids, batches)


def expected_counts(num_ids: int) -> dict[str, int]:
    """Return how many documents have each fate between the older and the newer version."""
    counts = np.bincount(_fates_of(np.arange(num_ids, dtype=np.uint64)).astype(np.int64), minlength=1000)
    found = {"added": counts[1], "removed": counts[2], "moved": counts[10] + counts[20]}
    return {fate: int(found.get(fate, num_ids - sum(found.values()))) for fate in FATES}


def _fates_of(ids: UInt64s) -> UInt64s:
    """Return a number in [0, 1000) for each id: 1 added, 2 removed, 10 or 20 moved, all others kept."""
    return mix64(Purpose.SPLIT, 0, [ids]) % np.uint64(1000)
