"""The rows of a partition from which the check takes documents: neighbours, about an eighth of its documents.

The check reads its rows from their source a second time. If they came from the whole partition, it would have to read
and decompress all of the partition again.
"""

from __future__ import annotations

from itertools import accumulate

import xxhash

from tokenloom.storage.formats.keys import KEY_SPACE
from tokenloom.storage.work.partition_records import RowWindow
from tokenloom.tasks.sources import Rows

_SHARE = 8  # a window holds the documents of a partition divided by this, or more


class WindowChooser:
    """Chooses a window by the hash of a name; its bounds are those of batches, so all it keeps is two numbers of each.

    Args:
        name: of the partition's spills.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._batches: list[tuple[int, int]] = []  # (first row, number of documents)

    def add(self, rows: Rows) -> None:
        """Look at a batch of documents; the batches come in the order of the file."""
        if len(rows.rows):
            self._batches.append((int(rows.rows[0]), len(rows.rows)))

    def window(self) -> RowWindow | None:
        """Return the window; None if the partition has no document."""
        if not self._batches:
            return None
        ends = list(accumulate(count for _, count in self._batches))
        wanted = -(-ends[-1] // _SHARE)
        start = (ends[-1] - wanted) * xxhash.xxh3_64_intdigest(self._name.encode()) // KEY_SPACE
        first = next(i for i, end in enumerate(ends) if end > start)
        last = next(i for i, end in enumerate(ends) if end >= start + wanted)
        before = ends[first] - self._batches[first][1]
        end_row = self._batches[last + 1][0] if last + 1 < len(ends) else KEY_SPACE
        return RowWindow(self._batches[first][0], end_row, ends[last] - before)
