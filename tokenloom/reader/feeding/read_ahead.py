"""Reading coming rows of cold files ahead, on several threads, so that copying them does not wait for the disk.

It is off while rows come from memory: it turns on when copying a chunk waited for the disk, which the system counts for
each thread, and off when reading ahead has not waited for some chunks.
"""

from __future__ import annotations

import resource
from concurrent.futures import Future, ThreadPoolExecutor

from tokenloom.reader.feeding.timing import StepTimes
from tokenloom.reader.shards.assembly import Block

_ROWS_A_TASK = 8
_CHUNKS_AHEAD = 4
_COLD_SHARE = 1 / 4  # of rows that waited; some always do where the system takes idle pages back
_COLD_CHUNKS = 16  # to read ahead since the disk was last waited for
_CHUNKS_A_LOOK = 8  # asking the system takes 2 us


class ReadAhead:
    """Reads rows of a block into the system's cache before they are copied.

    Args:
        pool: runs the reads.
        io_threads: 0 turns it off.
        times: gets the seconds waited.
    """

    def __init__(self, pool: ThreadPoolExecutor, io_threads: int, times: StepTimes) -> None:
        self._pool, self._enabled, self._times = pool, io_threads > 0, times
        self._before, self._chunks = (0, 0), 0
        self._looks = False
        self._cold_chunks = 0  # chunks to read ahead before it is tried without
        self._asked = 0
        self._running: dict[int, Future[int]] = {}  # by the first row of each task: how often it waited

    def forget(self) -> None:
        """Start again with a new block."""
        self._asked, self._running = 0, {}

    def read(self, block: Block, first: int, end: int) -> None:
        """Wait until rows [first, end) are read, and ask for those behind them, if files are cold."""
        if not self._cold_chunks:
            self._chunks += 1
            self._looks = self._enabled and self._chunks % _CHUNKS_A_LOOK == 1
            if self._looks:
                self._before = _disk_reads()
            return
        self._looks = False
        self._cold_chunks -= 1
        with self._times.step("read"):
            self._ask(block, max(first, self._asked), min(block.num_places, end + _CHUNKS_AHEAD * (end - first)))
            waits = sum(self._running.pop(row).result() for row in list(self._running) if row < end)
        if waits > (end - first) * _COLD_SHARE:
            self._cold_chunks = _COLD_CHUNKS

    def _ask(self, block: Block, first: int, end: int) -> None:
        for row in range(first, end, _ROWS_A_TASK):
            self._running[row] = self._pool.submit(_read_rows, block, row, min(end, row + _ROWS_A_TASK))
        self._asked = max(self._asked, end)

    def learn(self, num_rows: int) -> None:
        """Note that this thread copied rows since `read`; if it waited for the disk, coming ones are read ahead."""
        if not self._looks:
            return
        faults, blocks = (after - before for after, before in zip(_disk_reads(), self._before, strict=True))
        # Without a map there is no fault; a row then takes some 64 blocks, with what the system reads around it.
        if (faults or blocks // 64) > num_rows * _COLD_SHARE:
            self._cold_chunks = _COLD_CHUNKS


def _disk_reads() -> tuple[int, int]:
    """Return how often this thread has waited for a page of a map, and the blocks of 512 bytes that it has read."""
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_majflt, usage.ru_inblock


def _read_rows(block: Block, first: int, end: int) -> int:
    """Return how often reading the rows waited for the disk."""
    waits = 0
    for opened, shard, start, stop in block.pieces(first, end):
        before = _disk_reads()
        opened.read_ahead(shard, start, stop)
        waits += _disk_reads() > before
    return waits
