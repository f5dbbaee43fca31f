"""Read the blocks of cold files that coming rows need, ahead on several threads, each block once.

An order uses its active shards whole and soon. So a block around a row is read at once, large enough for the disk to
work at its full rate, and the rows that follow find it in the system's cache. A window plans its blocks in the order of
first need, all of them together; a window whose blocks were read before costs nothing more.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import NamedTuple, TypeAlias

import numpy as np

from tokenloom.reader.feeding.timing import PhaseTimes
from tokenloom.reader.shards.disk_reads import PAGE
from tokenloom.reader.shards.one_shard import disk_waits
from tokenloom.reader.shards.rows import ranges
from tokenloom.reader.shards.window import OpenFiles, TokenWindow, WindowPart

_MAX_BLOCKS = 2**40  # a shard has fewer blocks
_EVICTED_SHARE = 1 / 4  # if more rows of a chunk wait, blocks were evicted; some always wait for idle pages
_TASK_SECONDS = 0.1  # a task that reads ends after this time, so that the pool may open a shard
_CHUNKS_PER_MEASUREMENT = 8  # measuring each chunk would cost 2 us, a system call


class _Read(NamedTuple):
    """Token bytes [start, end) of a shard, which `row` of the window is the first to need."""

    row: int
    shards: OpenFiles
    shard: int
    start: int
    end: int


#: the reads that have not begun, in the order of need, and their numbers
_Planned: TypeAlias = deque[tuple[int, _Read]]
#: how many bytes came from the disk, or what the read raised
_Result: TypeAlias = int | BaseException
_Ended: TypeAlias = "SimpleQueue[tuple[int, _Result]]"


class ReadAhead:
    """Reads what the rows of a window need into the system's cache before they are copied.

    Each thread takes the first read that is left. A pool task for each read would cost 40 us, 0.1 s for a window.

    Args:
        pool: runs the reads.
        block: the bytes that are read around a row, see block_bytes.
        io_threads: how many threads read; 0 turns reading ahead off.
        times: adds up the seconds waited, and the bytes read.
    """

    def __init__(self, pool: ThreadPoolExecutor, block: int, io_threads: int, times: PhaseTimes) -> None:
        self._pool, self._block, self._io_threads, self._times = pool, block, io_threads, times
        self._planned: _Planned = deque()
        self._ended: _Ended = SimpleQueue()
        self._results: dict[int, _Result] = {}  # what the reads that ended gave, by their numbers
        self._rows: deque[int] = deque()  # the rows that need the reads from number `_first_read` on
        self._first_read = 0  # the number of the first read that was not waited for
        self._chunks, self._before = 0, 0

    def plan(self, window: TokenWindow, first: int = 0) -> None:
        """Begin to read what the rows from `first` on of a window need, in the order of need."""
        widths = (window.form.dtype.itemsize, 1)  # of a token, and of its class
        reads = [
            read
            for part in (window.parts if self._io_threads else ())
            for files, width in zip(part.files, widths, strict=False)
            for read in _reads_of(part, files, first, width, self._block)
        ]
        reads.sort(key=lambda read: read.row)
        number = self._first_read + len(self._rows)
        self._rows.extend(read.row for read in reads)
        self._planned.extend(enumerate(reads, number))
        for _ in range(min(self._io_threads, len(reads))):
            self._pool.submit(_read_planned, self._pool, self._planned, self._ended)

    def read(self, end: int) -> None:
        """Wait until what the rows before `end` need is read."""
        if self._rows and self._rows[0] < end:
            with self._times.read:
                while self._rows and self._rows[0] < end:
                    self._wait_for_first()
        self._chunks += 1
        if self._chunks % _CHUNKS_PER_MEASUREMENT == 1:
            self._before = _num_waits()

    def check(self, window: TokenWindow, first: int, end: int) -> None:
        """After rows [first, end) were copied, plan again if the system has evicted what was read for them."""
        measured = self._io_threads and self._chunks % _CHUNKS_PER_MEASUREMENT == 1
        if measured and _num_waits() - self._before > (end - first) * _EVICTED_SHARE:
            for files in (files for part in window.parts for files in part.files):
                files.forget_blocks()
            self.cancel()  # reads for later rows would come first
            while self._rows:
                self._wait_for_first()
            self.plan(window, end)

    def cancel(self) -> None:
        """Drop the reads that have not begun; whoever waits for one of them continues."""
        _drop_all(self._planned, self._ended)

    def _wait_for_first(self) -> None:
        while self._first_read not in self._results:
            number, result = self._ended.get()
            self._results[number] = result
        result = self._results.pop(self._first_read)
        if isinstance(result, BaseException):
            raise result
        self._times.bytes_read_ahead += result
        self._first_read += 1
        self._rows.popleft()


def _read_planned(pool: ThreadPoolExecutor, planned: _Planned, ended: _Ended) -> None:
    """Make reads until none is left; each thread takes the first one.

    It runs for _TASK_SECONDS, then submits its successor. The interpreter waits for running tasks when it exits, and
    the pool refuses new ones: then the other reads are dropped.
    """
    end = time.monotonic() + _TASK_SECONDS
    with suppress(IndexError):
        while True:
            number, read = planned.popleft()
            try:
                shard = read.shards.opened.get(read.shard)
                ended.put((number, shard.read_ahead(read.start, read.end) if shard else 0))
            except BaseException as error:  # noqa: BLE001  # who waits for it raises it, whatever it is
                ended.put((number, error))
            if time.monotonic() >= end:
                break
        try:
            pool.submit(_read_planned, pool, planned, ended)
        except RuntimeError:
            _drop_all(planned, ended)


def _drop_all(planned: _Planned, ended: _Ended) -> None:
    with suppress(IndexError):
        while True:
            number, _ = planned.pop()
            ended.put((number, 0))


def _num_waits() -> int:
    """Return how many rows this thread has waited for, about."""
    faults, disk_blocks = disk_waits()
    return max(faults, disk_blocks // 64)  # without a map there are no faults, but about 64 blocks a row


def _reads_of(part: WindowPart, files: OpenFiles, first: int, width: int, block: int) -> list[_Read]:
    """Return the reads of files for the rows of a part from row `first` of the window on; none that was made before.

    Each read is as many blocks as one row needs.
    """
    rows = part.rows
    places = np.repeat(part.places, np.diff(rows.row_offsets))
    kept = np.flatnonzero((places >= first) & (rows.shards >= 0))
    starts = rows.starts[kept] * width // block
    counts = -(-(rows.starts[kept] + rows.lengths[kept]) * width // block) - starts
    piece = np.repeat(kept, counts)
    keys, index = np.unique(rows.shards[piece] * _MAX_BLOCKS + ranges(starts, counts), return_index=True)
    shards, numbers = np.divmod(keys, _MAX_BLOCKS)
    reads: list[_Read] = []
    for row, shard, number in zip(places[piece[index]].tolist(), shards.tolist(), numbers.tolist(), strict=True):
        opened = files.opened.get(shard)
        if block > PAGE and not (opened and opened.claim_block(number)):
            continue
        read = _Read(row, files, shard, number * block, (number + 1) * block)
        if reads and reads[-1][:3] == read[:3] and reads[-1].end == read.start:
            read = read._replace(start=reads.pop().start)
        reads.append(read)
    return reads
