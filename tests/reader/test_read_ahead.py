"""When cold files are read ahead: what the system counts for a thread, with and without a map."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tokenloom.reader.feeding import read_ahead
from tokenloom.reader.feeding.read_ahead import ReadAhead
from tokenloom.reader.feeding.timing import PhaseTimes
from tokenloom.reader.shards.window import Piece


@pytest.mark.parametrize(
    ("before", "after", "is_cold"),
    [
        ((0, 0), (0, 0), False),
        ((5, 900_000), (5, 900_000), False),  # earlier reads do not count
        ((0, 900_000), (40, 905_000), True),  # the first page faults of a thread that has read files
        ((7, 900_000), (8, 900_256), False),  # one fault of 64 rows, and what the system read around it
        ((0, 0), (0, 64 * 64), True),  # without a map
        ((3, 10), (3, 10 + 64 * 64), True),
    ],
)
def test_reading_ahead_turns_on_after_copying_waited_for_the_disk(
    before: tuple[int, int], after: tuple[int, int], is_cold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk_reads = iter([before, after])
    monkeypatch.setattr(read_ahead, "_disk_reads", lambda: next(disk_reads))
    window: Any = _Window()
    with ThreadPoolExecutor(1) as pool:
        reads = ReadAhead(pool, 1, PhaseTimes())
        reads.read(window, 0, 64)
        assert not window.was_read_ahead
        reads.learn(64)
        reads.read(window, 64, 128)
    assert window.was_read_ahead == is_cold


class _Window:
    """Rows without tokens, which record whether they were read ahead."""

    num_rows = 128
    was_read_ahead = False

    def pieces(self, first: int, end: int) -> Iterator[Piece]:
        self.was_read_ahead = True
        return iter(())
