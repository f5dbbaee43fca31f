"""The rows of a partition from which the check takes documents: neighbours with at least an eighth of its documents.

The check reads its rows from their source a second time. If they came from the whole partition, it would have to read
and decompress all of the partition again.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

import xxhash

from tokenloom.storage.formats.keys import KEY_SPACE
from tokenloom.storage.work.partition_records import RowWindow
from tokenloom.tasks.sources import Rows

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

    def window(self) -> RowWindow | None:
        """Return the window; None if the partition has no document."""
        if not self._batches:
            return None
        num_documents = sum(count for _, count in self._batches)
        tiles = _tiles(self._batches, -(-num_documents // WINDOW_SHARE))
        chosen = num_documents * xxhash.xxh3_64_intdigest(self._name.encode()) // KEY_SPACE
        i = bisect_right(list(accumulate(count for _, count in tiles)), chosen)
        return RowWindow(tiles[i][0], tiles[i + 1][0] if i + 1 < len(tiles) else KEY_SPACE, tiles[i][1])


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
