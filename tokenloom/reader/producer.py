"""The producer: one rank's batches in order, several at a time, made wherever it is called (thread or consumer).

Rows are planned in blocks that start with one batch, so that the first comes soon, and double up to 16,384 rows.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenloom.reader.arguments import whole
from tokenloom.reader.assembly import Block
from tokenloom.reader.feeds import Feed
from tokenloom.reader.order import Int64s
from tokenloom.reader.ranks import Ranks
from tokenloom.reader.read_ahead import ReadAhead
from tokenloom.reader.streams import Stream
from tokenloom.reader.timing import StepTimes
from tokenloom.wording import counted

_BLOCK_ROWS = 2**14  # that are planned together, at most
_BLOCK_TOKENS = 2**25  # in them, at most
_LOOK_AHEAD = 2**14  # samples of this rank behind a block whose shards are opened ahead


@dataclass(frozen=True)
class Steps:
    """How a rank walks over the stream.

    Args:
        ranks: this rank, and how many.
        batch_size: samples of a batch on one rank.
        end: positions of the stream in all; None if endless.
        drop_last: leave out the last step if it is short; else it is padded on all ranks alike.
    """

    ranks: Ranks
    batch_size: int
    end: int | None
    drop_last: bool

    @property
    def samples(self) -> int:
        """Samples of one step over all ranks."""
        return self.batch_size * self.ranks.world_size

    def left(self, position: int) -> int | None:
        """Return the steps from `position` to the end; None if endless."""
        if self.end is None:
            return None
        left = max(0, self.end - position)
        return left // self.samples if self.drop_last else -(-left // self.samples)

    def check_from(self, position: int) -> None:
        """Raise ValueError if there is no step from `position`."""
        if self.end is not None and self.left(position) == 0:
            raise ValueError(
                f"{counted(max(0, self.end - position), 'sample')} make no step of "
                f"{counted(self.batch_size, 'sample')} on {self.ranks.world_size} ranks: "
                "take a smaller batch_size, more epochs, or drop_last=False"
            )

    def after(self, position: int, num_steps: int) -> int:
        """Return the position after some steps; the last, padded one ends with the stream."""
        after = position + num_steps * self.samples
        return after if self.end is None else min(after, self.end)

    def positions(self, position: int, num_steps: int) -> Int64s:
        """Return this rank's positions of the next steps: those congruent to its rank; the last may be short."""
        first = position + (self.ranks.rank - position) % self.ranks.world_size
        found = first + self.ranks.world_size * np.arange(num_steps * self.batch_size, dtype=np.int64)
        return found if self.end is None else found[found < self.end]


def end_of(num_samples: int | None, num_epochs: int | None) -> int | None:
    """Return the positions of a stream in all, None if endless; ValueError if it can't have that many epochs."""
    if num_epochs is None:
        return None
    if num_samples is None:
        raise ValueError("a mixture has no epoch: leave out num_epochs, and stop after as many steps as you want")
    return num_samples * whole("num_epochs", num_epochs, 1)


class Producer:
    """Batches of one rank from a position on.

    Args:
        stream: the samples.
        steps: how the rank walks.
        feed: makes tensors.
        position: of the stream, from where on.
        chunk_batches: batches made at a time, at most.
        io_threads: threads that open coming shards.
        times: gets the seconds of each step.
    """

    def __init__(
        self,
        stream: Stream,
        steps: Steps,
        feed: Feed,
        position: int,
        chunk_batches: int,
        io_threads: int,
        times: StepTimes,
    ) -> None:
        self._stream, self._steps, self._feed, self._times = stream, steps, feed, times
        self._position, self._chunk_batches = position, chunk_batches
        self._left = steps.left(position)
        self._block_rows = min(_BLOCK_ROWS, _BLOCK_TOKENS // stream.format.row_tokens)
        self._pool = ThreadPoolExecutor(max(1, io_threads), "tokenloom-io")
        self._reads = ReadAhead(self._pool, io_threads, times)
        self._block: Block | None = None
        self._block_steps = self._taken_steps = 0
        self._pid = os.getpid()

    @property
    def is_mine(self) -> bool:
        """Whether its threads run in this process, not in a parent that forked it."""
        return self._pid == os.getpid()

    def make(self, wanted: int) -> list[Any]:
        """Return up to `wanted` next batches, at least one, none at the end of the stream."""
        if self._left == 0:
            return []
        if self._taken_steps == self._block_steps:
            self._plan()
        assert self._block is not None  # just planned
        num_batches = min(wanted, self._chunk_batches, self._block_steps - self._taken_steps)
        first = self._taken_steps * self._steps.batch_size
        end = first + num_batches * self._steps.batch_size
        self._reads.read(self._block, first, end)
        batches = self._feed.make(self._block, first, num_batches)
        self._reads.learn(end - first)
        self._taken_steps += num_batches
        if self._left is not None:
            self._left -= num_batches
        return batches

    def close(self) -> None:
        """End the threads; what they were to do is given up."""
        if self.is_mine:
            self._pool.shutdown(wait=False, cancel_futures=True)
            for dataset in self._stream.datasets:
                dataset.shards.forget_coming()

    def _plan(self) -> None:
        steps = min(2 * self._block_steps or 1, max(1, self._block_rows // self._steps.batch_size))
        steps = steps if self._left is None else min(steps, self._left)
        with self._times.step("read"):
            positions = self._steps.positions(self._position, steps)
            self._open_ahead(positions, steps)
            self._block = self._stream.plan(positions, steps * self._steps.batch_size)
        self._block.touch()
        self._reads.forget()
        self._position += steps * self._steps.samples
        self._block_steps, self._taken_steps = steps, 0

    def _open_ahead(self, positions: Int64s, num_steps: int) -> None:
        """Fetch and plan the shards of a block side by side, then those of what follows it, where it takes time."""
        if not self._stream.opens_slowly:
            return
        self._prepare(positions)
        after = self._position + num_steps * self._steps.samples
        coming = self._steps.positions(after, max(1, _LOOK_AHEAD // self._steps.batch_size))
        self._pool.submit(self._prepare, coming)

    def _prepare(self, positions: Int64s) -> None:
        for dataset, shards in self._stream.shards_of(positions):
            dataset.prepare_shards(shards, self._pool)
