"""Which documents the check encodes again: about 1,000 of those in the spills, chosen by hash.

Those that the shuffle drops, as duplicates or because they are excluded, are compared with nothing.
Each partition gives its share, from a window of its rows (rows/check_window.py). What is chosen depends only on the
records of the partitions, so shards and check choose the same documents at the same time, each for itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

from tokenloom.storage.formats.arrays import AnyArray, Int64s
from tokenloom.storage.formats.keys import KEY_SPACE, row_sample_keys
from tokenloom.storage.work.assignment import RowSample
from tokenloom.storage.work.partition_records import PartitionRecord

NUM_CHECKED = 1000  # of a build, about; all of a build with fewer


def row_sample(record: PartitionRecord, num_documents: int) -> RowSample:
    """Return which documents of a partition are checked.

    Args:
        record: the partition's.
        num_documents: of all partitions of the build.
    """
    own = sum(sum(spill.documents) for spill in record.spills)
    window, share = record.window, NUM_CHECKED / max(NUM_CHECKED, num_documents)
    if window is None or window.documents < own * share:
        return RowSample(0, KEY_SPACE - 1, _largest_key(share))
    return RowSample(window.first_row, window.end_row - 1, _largest_key(own * share / window.documents))


def _largest_key(share: float) -> int:
    """Return the key that this share of all keys does not exceed, for a share in (0, 1]."""
    return KEY_SPACE - 1 if share >= 1 else int(share * KEY_SPACE)


class RowSamples:
    """Finds the documents that are checked.

    Args:
        samples: of n spills.
    """

    def __init__(self, samples: Sequence[RowSample]) -> None:
        bounds = [(sample.first_row, sample.last_row, sample.largest_key) for sample in samples]
        table = np.array(bounds, np.uint64).reshape(-1, 3)
        self._first, self._last, self._largest = table.T
        #: changes with the samples
        self.digest = xxhash.xxh3_128_hexdigest(table.data)

    def find(self, rows: AnyArray, spill_position: NDArray[np.uint32]) -> Int64s:
        """Return the positions in `rows`, (m,) of spill.TABLE_DTYPE, of those that are checked.

        Args:
            rows: documents of the spills.
            spill_position: (m,) which of the n spills each is of.
        """
        numbers = rows["row"]
        is_near = (numbers >= self._first[spill_position]) & (numbers <= self._last[spill_position])
        near = np.flatnonzero(is_near)
        keys = row_sample_keys(rows["content_high"][near], numbers[near])
        return near[keys <= self._largest[spill_position[near]]]
