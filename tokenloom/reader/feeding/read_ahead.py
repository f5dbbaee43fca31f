"""Read the blocks of cold files that coming rows need, ahead on several threads, each block once.

An order uses its active shards whole and soon. So a block around a row is read at once, large enough for the disk to
work at its full rate, and the rows that follow find it in the system's cache. A window plans its blocks in the order of
first need, all of them together; a window whose blocks were read before costs nothing more.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from tokenloom.reader.feeding.timing import PhaseTimes
from tokenloom.reader.shards.disk_reads import PAGE, disk_waits
from tokenloom.reader.shards.open_shards import OpenShards
from tokenloom.reader.shards.rows import ranges
from tokenloom.reader.shards.window import RowWindow, WindowPart

_MAX_BLOCKS = 2**40  # in a shard
_EVICTED_SHARE = 1 / 4  # of the rows of a chunk; some always wait if the system reclaims idle pages
_CHUNKS_PER_MEASUREMENT = 8  # a system call takes 2 us


class _Read(NamedTuple):
    """Token bytes [start, end) of a shard, which `row` of the window is the first to need."""

    row: int
    shards: OpenShards
    shard: int
    start: int
    end: int


class ReadAhead:
    """Reads what the rows of a window need into the system's cache before they are copied.

    Args:
        pool: runs the reads.
        block: the bytes that are read around a row, see block_bytes.
        io_threads: 0 turns reading ahead off.
        times: adds up the seconds waited, and the bytes read.
    """

    def __init__(self, pool: ThreadPoolExecutor, block: int, io_threads: int, times: PhaseTimes) -> None:
        self._pool, self._block, self._enabled, self._times = pool, block, io_threads > 0, times
        self._running: deque[tuple[int, Future[int]]] = deque()  # by the first row that needs it
        self._chunks, self._before = 0, 0

    def plan(self, window: RowWindow, first: int = 0) -> None:
        """Begin to read what the rows from `first` on of a window need, in the order of need."""
        if self._enabled:
            width = window.form.dtype.itemsize
            reads = [read for part in window.parts for read in _reads_of(part, first, width, self._block)]
            for row, shards, shard, start, end in sorted(reads, key=lambda read: read.row):
                self._running.append((row, self._pool.submit(shards.read_ahead, shard, start, end)))

    def read(self, end: int) -> None:
        """Wait until what the rows before `end` need is read."""
        if self._running:
            with self._times.phase("read"):
                while self._running and self._running[0][0] < end:
                    self._times.bytes_read_ahead += self._running.popleft()[1].result()
        self._chunks += 1
        if self._chunks % _CHUNKS_PER_MEASUREMENT == 1:
            self._before = _num_waits()

    def check(self, window: RowWindow, first: int, end: int) -> None:
        """After rows [first, end) were copied, plan again if the system has evicted what was read for them."""
        measured = self._enabled and self._chunks % _CHUNKS_PER_MEASUREMENT == 1
        if measured and _num_waits() - self._before > (end - first) * _EVICTED_SHARE:
            for part in window.parts:
                part.shards.forget_blocks()
            self._cancel()  # those of later rows would come first
            self.plan(window, end)

    def _cancel(self) -> None:
        """Cancel what was planned; wait for the few reads that run."""
        while self._running:
            _, read = self._running.pop()
            if not read.cancel():
                self._times.bytes_read_ahead += read.result()


def _num_waits() -> int:
    """Return how many rows this thread has waited for, about."""
    faults, disk_blocks = disk_waits()
    return max(faults, disk_blocks // 64)  # without a map no faults, but 64 blocks with what is read around a row


def _reads_of(part: WindowPart, first: int, width: int, block: int) -> list[_Read]:
    """Return the reads for the rows of a part from row `first` of the window on; none that was made before.

    Each read is as many blocks as one row needs.
    """
    rows = part.rows
    places = np.repeat(part.places, np.diff(rows.row_offsets))
    kept = np.flatnonzero(places >= first)
    starts = rows.starts[kept] * width // block
    counts = -(-(rows.starts[kept] + rows.lengths[kept]) * width // block) - starts
    piece = np.repeat(kept, counts)
    keys, index = np.unique(rows.shards[piece] * _MAX_BLOCKS + ranges(starts, counts), return_index=True)
    shards, numbers = np.divmod(keys, _MAX_BLOCKS)
    reads: list[_Read] = []
    for row, shard, number in zip(places[piece[index]].tolist(), shards.tolist(), numbers.tolist(), strict=True):
        if block > PAGE and not part.shards.claim_block(shard, number):
            continue
        read = _Read(row, part.shards, shard, number * block, (number + 1) * block)
        if reads and reads[-1][:3] == read[:3] and reads[-1].end == read.start:
            read = read._replace(start=reads.pop().start)
        reads.append(read)
    return reads
