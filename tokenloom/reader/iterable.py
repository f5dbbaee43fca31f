"""SampleStream: a loader's stream as an IterableDataset, for those who want torch's DataLoader and its workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from tokenloom.reader.arguments import whole
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.feeding.feeds import HostFeed
from tokenloom.reader.feeding.timing import StepTimes
from tokenloom.reader.mixture import Mixture
from tokenloom.reader.order.epochs import Int64s
from tokenloom.reader.producer import Steps, end_of
from tokenloom.reader.ranks import find_ranks
from tokenloom.reader.streams import make_stream

_GROUP_ROWS = 1024  # that are planned together


class SampleStream(IterableDataset[dict[str, Any]]):
    """Batches, or samples, of this rank's stream, split among the workers of a DataLoader.

    With a batch_size, give it to DataLoader(stream, batch_size=None, num_workers=w): worker i makes the batches i,
    i + w, ..., so that in order they are those of a TokenLoader, for any w. Without one it yields samples, and worker
    i those at i, i + w, ...

    Args:
        source: a dataset or a mixture.
        batch_size: samples of a batch; None for single samples.
        start: samples of the global stream to leave out, as `samples` of a loader's state.
        order, seed, lanes, rank, world_size, mesh, drop_last, num_epochs: as in TokenLoader.
    """

    def __init__(
        self,
        source: TokenDataset | Mixture,
        *,
        batch_size: int | None = None,
        start: int = 0,
        order: str = "block",
        seed: int = 0,
        lanes: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: Any = None,
        drop_last: bool = True,
        num_epochs: int | None = None,
    ) -> None:
        batch_size = None if batch_size is None else whole("batch_size", batch_size, 1)
        start = whole("start", start, 0, 2**62)
        self._source, self._order = source, (order, seed, lanes)
        self._start, self._batch_size = start, batch_size
        ranks = find_ranks(rank, world_size, mesh)
        stream = make_stream(source, order, seed, lanes)
        self._steps = Steps(ranks, batch_size or 1, end_of(stream.num_samples, num_epochs), drop_last)
        self._steps.check_from(start)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        index, count = (worker.id, worker.num_workers) if worker else (0, 1)
        stream = make_stream(self._source, *self._order)
        feed = HostFeed(stream.format, self._steps.batch_size, 1, 4, torch.device("cpu"), StepTimes())
        for steps in self._groups(index, count):
            positions = np.concatenate([self._positions(step) for step in steps])
            block = stream.plan(positions, len(steps) * self._steps.batch_size)
            for place in range(len(steps)):
                batch = feed.make(block, place * self._steps.batch_size, 1)[0]
                yield batch if self._batch_size else self._only_sample(batch)

    def _only_sample(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {name: values[0] for name, values in batch.items() if name not in ("cu_seqlens", "max_seqlen")}

    def _positions(self, step: int) -> Int64s:
        return self._steps.positions(self._start + step * self._steps.samples, 1)

    def _groups(self, index: int, count: int) -> Iterator[range]:
        """Yield the steps of one of `count` workers, in groups that double, so that the first batch comes soon."""
        left = self._steps.left(self._start)
        first, size = index, 1
        most = max(1, _GROUP_ROWS // self._steps.batch_size)
        while left is None or first < left:
            end = first + size * count
            yield range(first, end if left is None else min(end, left), count)
            first, size = end, min(2 * size, most)
