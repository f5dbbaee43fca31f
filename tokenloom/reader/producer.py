"""Produce the batches of one rank in order, several at a time, on the calling thread.

It looks up the rows of a whole window at once. The first window is one batch, so that the first batch comes soon; the
next are longer, up to 16,384 rows, so that the disk seldom waits for the next window.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeAlias

from tokenloom.cores import num_cores
from tokenloom.reader.feeding.read_ahead import ReadAhead
from tokenloom.reader.feeding.timing import PhaseTimes
from tokenloom.reader.order import Steps
from tokenloom.reader.shards.batch_format import Batch
from tokenloom.reader.shards.split_samples import SplitSamples
from tokenloom.reader.shards.window import TokenWindow
from tokenloom.reader.streams import Stream
from tokenloom.storage.formats.arrays import Int64s

_WINDOW_ROWS = 2**14  # a window has at most so many rows
_WINDOW_TOKENS = 2**25  # and at most so many tokens
_GROWTH = 64  # each window is this many times as long as the one before
_GROWTH_OPENING = 8  # the same where opening shards is slow: a window waits for its shards
_LOOK_AHEAD = 2**14  # the shards of so many samples of this rank after a window are opened ahead
#: what only the feed that made it can finish
Made: TypeAlias = Any  # type: ignore[explicit-any]


class Feed(Protocol):
    """Turns rows of a window into batches of tensors: makes several at a time, in the thread, and finishes each one."""

    def make(self, window: TokenWindow, first: int, num_batches: int) -> list[Made]:
        """Return the batches of rows [first, first + num_batches * batch_size) of a window."""

    def finish(self, made: Made) -> Batch:
        """Return a finished batch; each batch is finished once. Batches on the CPU are finished when they are made."""


class Producer:
    """The batches of one rank from a position on.

    Args:
        stream: the samples.
        steps: which positions the rank takes.
        feed: makes the tensors.
        position: the position in the stream to start at.
        chunk_batches: how many batches are made at a time, at most.
        io_threads: how many threads read ahead, open shards and plan their samples; at least one does. At most one for
            each core plans at a time.
        times: adds up the seconds of each phase.
    """

    def __init__(
        self,
        stream: Stream,
        steps: Steps,
        feed: Feed,
        position: int,
        chunk_batches: int,
        io_threads: int,
        times: PhaseTimes,
    ) -> None:
        self._stream, self._steps, self._feed, self._times = stream, steps, feed, times
        self._position, self._chunk_batches = position, chunk_batches
        self._left = steps.left(position)
        self._window_rows = min(_WINDOW_ROWS, _WINDOW_TOKENS // stream.format.row_tokens)
        self._pool = ThreadPoolExecutor(max(1, io_threads), "tokenloom-io")
        # More threads than cores would plan no faster, and each touches 0.1 GB of its own.
        self._planning = threading.Semaphore(num_cores())
        self._reads = ReadAhead(self._pool, stream.block_bytes, io_threads, times)
        self._window: TokenWindow | None = None
        self._window_index = self._window_steps = self._taken_steps = 0
        self._pid = os.getpid()

    @property
    def is_mine(self) -> bool:
        """Whether its threads run in this process, and not in the parent that forked it."""
        return self._pid == os.getpid()

    def make(self, wanted: int) -> list[Made]:
        """Return the next batches, at least one and at most `wanted`; none at the end of the stream."""
        if self._left == 0:
            return []
        for dataset in self._stream.datasets:
            for files in dataset.open_files:
                files.check_downloads()
        if self._taken_steps == self._window_steps:
            self._open_window()
        assert self._window is not None  # just opened
        num_batches = min(wanted, self._chunk_batches, self._window_steps - self._taken_steps)
        first = self._taken_steps * self._steps.batch_size
        end = first + num_batches * self._steps.batch_size
        self._reads.read(end)
        batches = self._feed.make(self._window, first, num_batches)
        self._reads.check(self._window, first, end)
        self._taken_steps += num_batches
        if self._left is not None:
            self._left -= num_batches
        return batches

    def close(self) -> None:
        """End the threads, and cancel their remaining work."""
        if self.is_mine:
            self._reads.cancel()
            self._pool.shutdown(wait=False, cancel_futures=True)
            for dataset in self._stream.datasets:
                dataset.shards.forget_ahead()

    def abandon(self) -> None:
        """Begin no more reads, for a loader that was dropped; its pools end with the last reference to it.

        The garbage collector may call this in the thread that makes the batches, while it holds a lock of a pool. So
        this takes no lock.
        """
        if self.is_mine:
            self._reads.cancel()

    def _open_window(self) -> None:
        self._window_index += 1
        growth = _GROWTH_OPENING if self._stream.opens_slowly else _GROWTH
        num_steps = min(growth * self._window_steps or 1, max(1, self._window_rows // self._steps.batch_size))
        num_steps = num_steps if self._left is None else min(num_steps, self._left)
        with self._times.read:
            positions = self._steps.positions(self._position, num_steps)
            if self._stream.opens_slowly:
                self._prepare(self._stream.shards_of(positions), waits=True)
            self._window = self._stream.window(positions, num_steps * self._steps.batch_size)
        self._window.touch(may_open=not self._stream.opens_slowly)
        self._reads.plan(self._window)
        self._position += num_steps * self._steps.samples
        self._window_steps, self._taken_steps = num_steps, 0
        if self._stream.opens_slowly:
            self._open_ahead()  # the window's own shards came first

    def _open_ahead(self) -> None:
        """Begin to open the shards of the samples after the window."""
        num_steps = max(1, _LOOK_AHEAD // self._steps.batch_size)
        if self._left is not None:
            num_steps = min(num_steps, self._left - self._window_steps)
        if num_steps:
            upcoming = self._steps.positions(self._position, num_steps)
            self._pool.submit(self._prepare_upcoming, upcoming, self._window_index)

    def _prepare_upcoming(self, positions: Int64s, window_index: int) -> None:
        """Prepare shards, unless another window has been opened since: the first of them may be read and removed."""
        if window_index == self._window_index:
            shards = [*self._stream.shards_of(positions)]  # in a busy process, this takes as long as a short window
            if window_index == self._window_index:
                self._prepare(shards)

    def _prepare(self, shards: Iterable[tuple[SplitSamples, list[int]]], *, waits: bool = False) -> None:
        for dataset, indices in shards:
            dataset.prepare_shards(indices, self._pool, self._planning, waits=waits)
