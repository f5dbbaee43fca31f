"""Which documents the check encodes again: about 1,000 of those in the spills, chosen by hash.

Each partition gives its share, from a window of its rows (rows/check_window.py). What is chosen depends only on the
records of the partitions, so shards and check choose the same documents at the same time, each for itself. Documents
that the shuffle drops, as duplicates or because they are excluded, are encoded again but compared with nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

from tokenloom.storage.formats.arrays import AnyArray, Int64s
from tokenloom.storage.formats.keys import KEY_SPACE, check_hashes
from tokenloom.storage.work.assignment import CheckedRows
from tokenloom.storage.work.partition_records import PartitionRecord
from tokenloom.tasks.rows.check_window import WINDOW_SHARE

NUM_CHECKED = 1000  # of a build, about; all of a build with no more


def choose_rows(record: PartitionRecord, num_documents: int) -> CheckedRows:
    """Return which rows of a partition are checked.

    Args:
        record: of the partition.
        num_documents: of all partitions of the build, at least 1.
    """
    own = sum(sum(spill.documents) for spill in record.spills)
    window, share = record.window, NUM_CHECKED / max(NUM_CHECKED, num_documents)
    if window is None or share * WINDOW_SHARE > 1:  # not by the window's size, which would favour large windows
        return CheckedRows(0, KEY_SPACE, _max_hash(share))
    return CheckedRows(window.first_row, window.end_row, _max_hash(own * share / window.documents))


def _max_hash(share: float) -> int:
    """Return the hash that this share of all hashes does not exceed, for a share in (0, 1]."""
    return KEY_SPACE - 1 if share >= 1 else int(share * KEY_SPACE)


class CheckedRowFinder:
    """Finds the documents that are checked.

    Args:
        checked: one for each of n spills.

    Attributes:
        digest: changes with `checked`.
    """

    def __init__(self, checked: Sequence[CheckedRows]) -> None:
        # The last row, because 2**64 does not fit into a uint64.
        bounds = [(rows.first_row, rows.end_row - 1, rows.max_hash) for rows in checked]
        table = np.array(bounds, np.uint64).reshape(-1, 3)
        self._first_row, self._last_row, self._max_hash = table.T
        self.digest = xxhash.xxh3_128_hexdigest(table.data)

    def find(self, rows: AnyArray, spill_position: NDArray[np.uint32]) -> Int64s:
        """Return the positions in `rows`, (m,) of spill.TABLE_DTYPE, of those that are checked.

        Args:
            rows: documents of the spills.
            spill_position: (m,) the spill of each, in [0, n).
        """
        numbers = rows["row"]
        is_near = (numbers >= self._first_row[spill_position]) & (numbers <= self._last_row[spill_position])
        near = np.flatnonzero(is_near)
        hashes = check_hashes(rows["content_high"][near], numbers[near])
        return near[hashes <= self._max_hash[spill_position[near]]]
