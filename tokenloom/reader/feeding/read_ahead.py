"""Read rows of cold files ahead on several threads, so that copying them does not wait for the disk.

It is off while rows come from memory. It turns on when copying a chunk waited for the disk, which the system counts for
each thread, and off after 16 chunks without such a wait.
"""

from __future__ import annotations

import resource
from concurrent.futures import Future, ThreadPoolExecutor

from tokenloom.reader.feeding.timing import PhaseTimes
from tokenloom.reader.shards.window import RowWindow

_ROWS_PER_TASK = 8
_CHUNKS_AHEAD = 4
_COLD_SHARE = 1 / 4  # of the rows of a chunk; some always wait if the system reclaims idle pages
_COLD_CHUNKS = 16  # that are read ahead after the last wait for the disk
_CHUNKS_PER_MEASUREMENT = 8  # a system call takes 2 us


class ReadAhead:
    """Reads rows of a window into the system's cache before they are copied.

    Args:
        pool: runs the reads.
        io_threads: 0 turns reading ahead off.
        times: adds up the seconds waited.
    """

    def __init__(self, pool: ThreadPoolExecutor, io_threads: int, times: PhaseTimes) -> None:
        self._pool, self._enabled, self._times = pool, io_threads > 0, times
        self._before, self._chunks = (0, 0), 0
        self._is_measuring = False
        self._cold_chunks = 0  # chunks to read ahead before it turns off
        self._submitted = 0
        self._running: dict[int, Future[int]] = {}  # by first row: how often the task waited

    def forget(self) -> None:
        """Start again with a new window."""
        self._submitted, self._running = 0, {}

    def read(self, window: RowWindow, first: int, end: int) -> None:
        """If files are cold, wait until rows [first, end) are read, and begin to read those after them."""
        if not self._cold_chunks:
            self._chunks += 1
            self._is_measuring = self._enabled and self._chunks % _CHUNKS_PER_MEASUREMENT == 1
            if self._is_measuring:
                self._before = _disk_reads()
            return
        self._is_measuring = False
        self._cold_chunks -= 1
        with self._times.phase("read"):
            self._submit(window, max(first, self._submitted), min(window.num_rows, end + _CHUNKS_AHEAD * (end - first)))
            waits = sum(self._running.pop(row).result() for row in list(self._running) if row < end)
        if waits > (end - first) * _COLD_SHARE:
            self._cold_chunks = _COLD_CHUNKS

    def _submit(self, window: RowWindow, first: int, end: int) -> None:
        for row in range(first, end, _ROWS_PER_TASK):
            self._running[row] = self._pool.submit(_read_rows, window, row, min(end, row + _ROWS_PER_TASK))
        self._submitted = max(self._submitted, end)

    def learn(self, num_rows: int) -> None:
        """Turn reading ahead on if this thread waited for the disk while it copied rows after `read`."""
        if not self._is_measuring:
            return
        faults, disk_blocks = (after - before for after, before in zip(_disk_reads(), self._before, strict=True))
        # Without a map there are no faults. A row then takes about 64 blocks, with what the system reads around it.
        if (faults or disk_blocks // 64) > num_rows * _COLD_SHARE:
            self._cold_chunks = _COLD_CHUNKS


def _disk_reads() -> tuple[int, int]:
    """Return how often this thread waited for a page of a map, and how many disk blocks of 512 bytes it read."""
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_majflt, usage.ru_inblock


def _read_rows(window: RowWindow, first: int, end: int) -> int:
    """Read rows into the system's cache; return how often that waited for the disk."""
    waits = 0
    for source, shard, start, stop in window.pieces(first, end):
        before = _disk_reads()
        source.read_ahead(shard, start, stop)
        waits += _disk_reads() > before
    return waits
