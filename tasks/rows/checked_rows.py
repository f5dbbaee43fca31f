"""Which documents the check encodes again: about 1,000 of those in the spills, chosen by hash.

Each partition gives its share, from a window of its rows: neighbours with at least an eighth of its documents. The
check reads its rows from their source a second time. If they came from the whole partition, it would have to read and
decompress all of the partition again.

What is chosen depends only on the records of the partitions, so shards and check choose the same documents at the same
time, each for itself. Documents that the shuffle drops, as duplicates or because they are excluded, are encoded again
but compared with nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import xxhash
from numpy.typing import NDArray

from tokenloom.storage.formats.arrays import AnyArray, Int64s
from tokenloom.storage.formats.keys import KEY_SPACE, check_hashes
from tokenloom.storage.work.assignment import CheckedRows
from tokenloom.storage.work.partition_records import CheckWindow, PartitionRecord
from tokenloom.tasks.sources import Rows

NUM_CHECKED = 1000  # documents of a build that are encoded again, about; a smaller build is checked whole
WINDOW_SHARE = 8  # a window holds the documents of a partition divided by this, or more


class WindowChooser:
    """Chooses a window by the hash of a name; windows begin and end with batches, so it keeps two numbers for each.

    Windows are tiles of the partition, chosen in proportion to their documents, of which a larger tile gives a smaller
    share: so every document is equally likely to be checked.

    Args:
        name: of the partition's spills.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._batches: list[tuple[int, int]] = []  # (first row, number of documents)

    def add(self, rows: Rows) -> None:
        """Add a batch of documents; the batches come in the order of the file."""
        if len(rows.rows):
            self._batches.append((int(rows.rows[0]), len(rows.rows)))

    def window(self) -> CheckWindow | None:
        """Return the window; None if the partition has no document."""
        if not self._batches:
            return None
        num_documents = sum(count for _, count in self._batches)
        tiles = _tiles(self._batches, -(-num_documents // WINDOW_SHARE))
        chosen = num_documents * xxhash.xxh3_64_intdigest(self._name.encode()) // KEY_SPACE
        i = bisect_right(list(accumulate(count for _, count in tiles)), chosen)
        return CheckWindow(tiles[i][0], tiles[i + 1][0] if i + 1 < len(tiles) else KEY_SPACE, tiles[i][1])


def _tiles(batches: list[tuple[int, int]], min_documents: int) -> list[tuple[int, int]]:
    """Join neighbouring batches to tiles of at least `min_documents`, which is at most their sum."""
    tiles: list[tuple[int, int]] = []
    for first_row, num_documents in batches:
        if tiles and tiles[-1][1] < min_documents:
            tiles[-1] = (tiles[-1][0], tiles[-1][1] + num_documents)
        else:
            tiles.append((first_row, num_documents))
    if len(tiles) > 1 and tiles[-1][1] < min_documents:
        _, rest = tiles.pop()
        tiles[-1] = (tiles[-1][0], tiles[-1][1] + rest)
    return tiles


def choose_rows(record: PartitionRecord, num_documents: int) -> CheckedRows:
    """Return which rows of a partition are checked.

    Args:
        record: of the partition.
        num_documents: of all partitions of the build, at least 1.
    """
    own = sum(sum(spill.documents) for spill in record.spills)
    window, share = record.window, NUM_CHECKED / max(NUM_CHECKED, num_documents)
    if window is None or share * WINDOW_SHARE > 1:  # the window's size would favour large windows
        return CheckedRows(0, KEY_SPACE, max_hash_of(share))
    return CheckedRows(window.first_row, window.end_row, max_hash_of(own * share / window.documents))


def max_hash_of(share: float) -> int:
    """Return the hash that this share of all hashes does not exceed."""
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
