"""Make the batches of one rank in order, several at a time, on the calling thread; files are opened and read ahead.

The rows of a whole window are looked up at once. The first window is one batch, so that the first batch comes soon; the
next are longer, up to 16,384 rows, so that the disk seldom waits for the next window.

An order uses its active shards whole and soon. So the block around a row of a cold file is read at once, and the rows
that follow find it in the system's cache. A disk reads 128 KiB in little more time than 4 KiB. Blocks have the size
that the system reads around a fault in a map, so that a row costs at most what it costs a loop over maps, and several
threads read. Each block is read once in an epoch, in the order of first need.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tokenloom.reader.feed import CudaFeed, HostFeed
from tokenloom.reader.prefetch import PhaseTimes
from tokenloom.reader.samples import prepare_shards
from tokenloom.reader.shard_data import OpenFile
from tokenloom.reader.shards import AnyFiles
from tokenloom.reader.streams.ranks import Steps
from tokenloom.reader.streams.stream import Stream
from tokenloom.reader.window import TokenWindow
from tokenloom.storage.formats.arrays import Int64s, ranges

WINDOW_ROWS = 2**14  # a window has at most so many rows
_WINDOW_TOKENS = 2**25  # and at most so many tokens
_GROWTH = 64  # each window is this many times as long as the one before
_GROWTH_OPENING = 8  # the same where opening shards is slow: a window waits for its shards
_LOOK_AHEAD = 2**14  # the shards of so many samples of this rank after a window are opened ahead
PAGE = 4096
_MIN_BLOCK, _MAX_BLOCK = 2**17, 2**19  # larger ones delay the first batches: docs/project/decisions-running.md
_MAX_MEMORY_SHARE = 1 / 2  # the rest is for the processes
CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))  # v2, v1
_READ_AROUND: dict[int, int] = {}  # by device, once it is known
_MAX_BLOCKS = 2**40  # a shard has fewer blocks
#: (files, shard, file, epoch): a file that may have to be read ahead, as it is open, in an epoch of its split
_ColdFile: TypeAlias = "tuple[AnyFiles, int, OpenFile | None, int]"
#: what only the feed that made it can finish
Made: TypeAlias = Any  # type: ignore[explicit-any]


class Producer:
    """The batches of one rank from a position on.

    Args:
        stream: the samples.
        steps: which positions the rank takes.
        feed: makes the tensors.
        position: the position in the stream to start at.
        chunk_batches: how many batches are made at a time, at most.
        io_threads: how many threads read ahead; 0 for none. At most so many, and one for each core, plan the samples of
            shards; at least one does.
        times: adds up the seconds of each phase.
    """

    def __init__(
        self,
        stream: Stream,
        steps: Steps,
        feed: HostFeed | CudaFeed,
        position: int,
        chunk_batches: int,
        io_threads: int,
        times: PhaseTimes,
    ) -> None:
        # Once this much was freed, glibc keeps the memory of the arrays of windows. It is never touched, so it is free.
        np.empty(2**24, dtype=np.uint8)
        self._stream, self._steps, self._feed, self._times = stream, steps, feed, times
        self._position, self._chunk_batches = position, chunk_batches
        self._left = steps.left(position)
        self._window_rows = min(WINDOW_ROWS, _WINDOW_TOKENS // stream.format.row_tokens)
        self._planners: ThreadPoolExecutor | None = None
        if stream.opens_slowly:
            from tokenloom.process import num_cores  # more threads than cores plan no faster, and each takes 0.1 GB

            self._planners = ThreadPoolExecutor(max(1, min(io_threads, num_cores())), "tokenloom-plan")
        self._reads = ReadAhead(block_bytes(stream), io_threads, times)
        self._window: TokenWindow | None = None
        self._window_index = self._window_steps = self._taken_steps = 0
        self.pid = os.getpid()  # a forked child has none of the threads

    def make(self, wanted: int) -> list[Made]:
        """Make the next batches, at least one and at most `wanted`; none at the end of the stream."""
        if self._left == 0:
            return []
        if self._taken_steps == self._window_steps:
            self._open_window()
        assert self._window is not None  # just opened
        num_batches = min(wanted, self._chunk_batches, self._window_steps - self._taken_steps)
        first = self._taken_steps * self._steps.batch_size
        self._reads.wait(first + num_batches * self._steps.batch_size)
        batches = self._feed.make(self._window, first, num_batches)
        self._taken_steps += num_batches
        if self._left is not None:
            self._left -= num_batches
        return batches

    def close(self) -> None:
        """End the threads, and cancel their remaining work."""
        if self.pid != os.getpid():
            return
        self._reads.end()
        if self._planners is not None:
            self._planners.shutdown(wait=False, cancel_futures=True)
            for member in self._stream.members.values():
                member.dataset.shards.forget_ahead()

    def abandon(self) -> None:
        """Begin no more reads, for a loader that was dropped; its pool ends with the last reference to it.

        The garbage collector may call this in the thread that makes the batches, while it holds a lock of the pool. So
        this takes no lock.
        """
        if self.pid == os.getpid():
            self._reads.end()

    def _open_window(self) -> None:
        self._window_index += 1
        growth = _GROWTH_OPENING if self._planners else _GROWTH
        num_steps = min(growth * self._window_steps or 1, max(1, self._window_rows // self._steps.batch_size))
        num_steps = num_steps if self._left is None else min(num_steps, self._left)
        begin = time.perf_counter()
        positions = self._steps.positions(self._position, num_steps)
        if self._planners:
            prepare_shards(self._stream.shards_of(positions), self._planners, waits=True)
        self._window = self._stream.window(positions, num_steps * self._steps.batch_size)
        self._times.add("read", begin)
        shards = defaultdict[int, list[int]](list)
        for _, number, shard in self._window.used_shards:
            shards[number].append(shard)
        # The cache keeps the files of a split until `touch` leaves them out: it is called for all splits.
        for number in range(len(self._window.splits)) if self._planners else [*shards]:
            for files in self._window.splits[number].files:
                files.touch(shards[number], may_open=not self._planners)
        self._reads.plan(self._window)
        self._position += num_steps * self._steps.samples
        self._window_steps, self._taken_steps = num_steps, 0
        if self._planners:
            self._open_ahead(self._planners)  # the window's own shards came first

    def _open_ahead(self, planners: ThreadPoolExecutor) -> None:
        """Begin to open the shards of the samples after the window."""
        num_steps = max(1, _LOOK_AHEAD // self._steps.batch_size)
        if self._left is not None:
            num_steps = min(num_steps, self._left - self._window_steps)
        if num_steps:
            upcoming = self._steps.positions(self._position, num_steps)
            planners.submit(self._prepare_upcoming, planners, upcoming, self._window_index)

    def _prepare_upcoming(self, planners: ThreadPoolExecutor, positions: Int64s, window_index: int) -> None:
        """Prepare shards, unless another window has been opened since: the first of them may be read and removed."""
        if window_index == self._window_index:
            shards = self._stream.shards_of(positions)  # in a busy process, this takes as long as a short window
            prepare_shards(shards if window_index == self._window_index else (), planners, waits=False)


class _Read(NamedTuple):
    """Token bytes [start, end) of a shard, which `row` of the window is the first to need.

    `result` gets how many bytes came from the disk, or the exception that the read raised.
    """

    row: int
    files: AnyFiles
    shard: int
    start: int
    end: int
    result: SimpleQueue[int | BaseException]


@dataclass
class ReadAhead:
    """Reads what the rows of a window need into the system's cache before they are copied.

    Args:
        block: the bytes that are read around a row, see block_bytes.
        num_threads: how many threads read; 0 turns reading ahead off.
        times: adds up the seconds waited, and the bytes read.
    """

    block: int
    num_threads: int
    times: PhaseTimes
    _planned: SimpleQueue[_Read | None] = field(default_factory=SimpleQueue)  # in order of need; None ends a thread
    _pending: deque[_Read] = field(default_factory=deque)  # reads that were planned and not waited for
    _num_started: int = 0
    _is_ended: bool = False

    def plan(self, window: TokenWindow) -> None:
        """Begin to read what a window needs, in the order of need."""
        if not self.num_threads or self._is_ended:
            return
        widths = (window.form.dtype.itemsize, 1)  # a token, and its class
        reads = [read for kind, width in enumerate(widths) for read in _reads_of(window, kind, width, self.block)]
        reads.sort(key=lambda read: read.row)
        self._pending.extend(reads)
        for read in reads:
            self._planned.put(read)
        while self._num_started < min(self.num_threads, len(reads)) and not self._is_ended:
            self._num_started += 1
            threading.Thread(target=_read, args=(self._planned,), name="tokenloom-io", daemon=True).start()

    def wait(self, end: int) -> None:
        """Wait until what the rows before `end` need is read; raise what a read raised."""
        if not self._pending or self._pending[0].row >= end:
            return
        begin = time.perf_counter()
        while self._pending and self._pending[0].row < end and not self._is_ended:
            result = self._pending.popleft().result.get()
            if isinstance(result, BaseException):
                raise result
            self.times.bytes_read_ahead += result
        self.times.add("read", begin)

    def end(self) -> None:
        """Drop the reads that have not begun, so that whoever waits for one of them continues, and end the threads."""
        if self._is_ended:
            return
        self._is_ended = True  # first: a thread that plans, or waits, sees it
        with suppress(Empty):
            while read := self._planned.get_nowait():
                read.result.put(0)
        for _ in range(self._num_started):
            self._planned.put(None)


def _read(planned: SimpleQueue[_Read | None]) -> None:
    """Make reads as they come, and keep no reference to their shards while there is none."""
    while read := planned.get():
        try:
            shard = read.files.opened.get(read.shard)
            read.result.put(shard.read_ahead(read.start, read.end) if shard else 0)
        except BaseException as error:  # noqa: BLE001  # who waits for it raises it, whatever it is
            read.result.put(error)
        del read, shard


def _reads_of(window: TokenWindow, kind: int, width: int, block: int) -> list[_Read]:
    """List the reads of tokens, or masks, for the rows of a window; none of a block that was read in this epoch.

    Each read is as many blocks as one row needs.
    """
    rows, cold = window.rows, _cold_files(window, kind, block)
    if not cold:
        return []
    tokens = np.flatnonzero(np.isin(rows.shards, [*cold]))
    starts = rows.starts[tokens] * width // block
    counts = -(-(rows.starts[tokens] + rows.lengths[tokens]) * width // block) - starts
    piece = np.repeat(tokens, counts)
    keys, index = np.unique(rows.shards[piece] * _MAX_BLOCKS + ranges(starts, counts), return_index=True)
    places = np.searchsorted(rows.row_offsets, piece[index], side="right") - 1
    reads: list[_Read] = []
    for row, shard, number in zip(*(each.tolist() for each in (places, *np.divmod(keys, _MAX_BLOCKS))), strict=True):
        files, of_split, file, epoch = cold[shard]
        if file and block > PAGE:
            if number in file.claimed or not file.is_cold(epoch):
                continue
            file.claimed.add(number)
        start, end = number * block, (number + 1) * block
        if reads and reads[-1][:3] == (row, files, of_split) and reads[-1].end == start:
            start = reads.pop().start
        reads.append(_Read(row, files, of_split, start, end, SimpleQueue()))
    return reads


def _cold_files(window: TokenWindow, kind: int, block: int) -> dict[int, _ColdFile]:
    """Find the files of a kind that a window may have to read ahead, by the numbers of their shards in its table."""
    epochs, cold = window.epochs.tolist(), dict[int, _ColdFile]()
    for number, split, shard in window.used_shards:
        if kind < len(window.splits[split].files):  # else it has no masks
            files, epoch = window.splits[split].files[kind], epochs[split]
            file = files.opened.get(shard)
            if block == PAGE or (file and file.is_cold(epoch)):
                cold[number] = files, shard, file, epoch
    return cold


def block_bytes(stream: Stream) -> int:
    """Choose how much is read around a row of a cold file, a power of two: what the slowest disk of a stream needs.

    It is a page, so that only the rows are read, if the shards that are read side by side take more than half of the
    memory: then most of a block would be evicted before it is used.
    """
    active_bytes, folders = 0.0, set[Path | str]()
    for member in stream.members.values():
        data, order = member.dataset, member.order
        num_active = len(data.counts) if order.name == "full" else order.lanes
        width = data.format.dtype.itemsize + len(data.files) - 1  # a token, and its class
        active_bytes += data.num_tokens * width * min(1, num_active / len(data.counts))
        folders.add(data.shards.cache.folder if data.shards.cache else data.shards.store.root)
    if active_bytes > _MAX_MEMORY_SHARE * memory_bytes():
        return PAGE
    return 1 << (min(_MAX_BLOCK, max(_MIN_BLOCK, *map(read_around, folders))).bit_length() - 1)


def memory_bytes() -> int:
    """Read the memory of this machine, or the limit of this container if that is less."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # another version of cgroups; or "max": no limit
            memory = min(memory, int(limit.read_text(encoding="ascii")))
    return memory


def read_around(path: Path | str) -> int:
    """Read how many bytes the system reads around a fault in a map of a disk; 0 where it does not say."""
    try:
        device = os.stat(path).st_dev
        if device not in _READ_AROUND:
            kernel = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
            _READ_AROUND[device] = 1024 * int(kernel.read_text(encoding="ascii"))
        return _READ_AROUND[device]
    except (OSError, ValueError):
        return 0
