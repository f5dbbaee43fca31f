"""SampleStream: the stream of a loader as an IterableDataset, for torch's DataLoader and its worker processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from tokenloom.errors import checked_int
from tokenloom.reader.batch import WHOLE_BATCH, Batch
from tokenloom.reader.feed import HostFeed
from tokenloom.reader.prefetch import PhaseTimes
from tokenloom.reader.streams.ranks import Steps, find_ranks
from tokenloom.reader.streams.stream import SampleSource, Stream
from tokenloom.storage.formats.arrays import Int64s

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_WINDOW_ROWS = 1024  # a window has at most so many rows


class SampleStream(IterableDataset[Batch]):
    """Batches or samples of this rank's stream, distributed over the workers of a DataLoader.

    With a batch_size, pass it as DataLoader(stream, batch_size=None, num_workers=w). Worker i makes the batches i,
    i + w, ..., so for any w the batches and their order are those of a TokenLoader. Without a batch_size it yields
    samples, and worker i makes those at i, i + w, ...

    Args:
        source: a TokenDataset or a Mixture.
        batch_size: samples in a batch; None for single samples.
        start: how many samples of the global stream to skip; `samples` of a loader's state.
        order, seed, lanes, rank, world_size, mesh, dims, drop_last, num_epochs: as in TokenLoader.
    """

    def __init__(
        self,
        source: SampleSource,
        *,
        batch_size: int | None = None,
        start: int = 0,
        order: str = "block",
        seed: int = 0,
        lanes: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: DeviceMesh | None = None,
        dims: Sequence[str] | None = None,
        drop_last: bool = True,
        num_epochs: int | None = None,
    ) -> None:
        batch_size = None if batch_size is None else checked_int("batch_size", batch_size, 1)
        start = checked_int("start", start, 0, 2**62)
        self._source, self._order = source, (order, seed, lanes)
        self._start, self._batch_size = start, batch_size
        ranks = find_ranks(rank, world_size, mesh, dims)
        stream = Stream(source, order, seed, lanes)
        self._steps = Steps(ranks, batch_size or 1, stream.num_samples, num_epochs, drop_last, start)

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        index, count = (worker.id, worker.num_workers) if worker else (0, 1)
        batch_size = self._steps.batch_size
        stream = Stream(self._source, *self._order)
        feed = HostFeed(stream.format, batch_size, 1, 4, torch.device("cpu"), PhaseTimes())
        for steps in self._step_groups(index, count):
            window = stream.window(np.concatenate([*map(self._positions, steps)]), len(steps) * batch_size)
            for row in range(0, window.num_rows, batch_size):
                batch = feed.make(window, row, 1)[0]
                yield batch if self._batch_size else _only_sample(batch)

    def _positions(self, step: int) -> Int64s:
        return self._steps.positions(self._start + step * self._steps.samples, 1)

    def _step_groups(self, index: int, count: int) -> Iterator[range]:
        """Yield the steps of one of `count` workers, in groups that double, so that the first batch comes soon."""
        num_steps = self._steps.left(self._start)
        first, group_steps = index, 1
        max_steps = max(1, _WINDOW_ROWS // self._steps.batch_size)
        while num_steps is None or first < num_steps:
            end = first + group_steps * count
            yield range(first, end if num_steps is None else min(end, num_steps), count)
            first, group_steps = end, min(2 * group_steps, max_steps)


def _only_sample(batch: Batch) -> Batch:
    """Take the one sample out of a batch: its tensors without their first dimension."""
    return {name: values[0] for name, values in batch.items() if name not in WHOLE_BATCH}
