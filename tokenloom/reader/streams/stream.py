"""The global stream of samples that ranks share, of a dataset or a mixture.

A position of a stream is one sample, whatever the number of ranks. A window says where the tokens of samples are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil
from typing import NamedTuple, TypeAlias

import numpy as np

from tokenloom.errors import checked_int
from tokenloom.reader.samples import SampleTable, SplitSamples
from tokenloom.reader.shards import OpenFiles
from tokenloom.reader.streams.order import DEFAULT_LANES, ORDER_VERSION, Order, Orders
from tokenloom.reader.streams.schedule import SCHEDULE_VERSION, Schedule
from tokenloom.reader.streams.state import DatasetFingerprint, Fingerprint, FingerprintStage, MixtureFingerprint
from tokenloom.reader.window import TokenWindow
from tokenloom.storage.formats.arrays import Int64s


class Consumed(NamedTuple):
    """What a stream reads of a member up to a position."""

    samples: int
    tokens: int
    epochs: float
    is_exact: bool  # else `tokens` is estimated by the mean of the member's samples


def consumed(data: SplitSamples, samples: int) -> Consumed:
    """Count what the first samples of a dataset's own stream are."""
    num_samples = max(1, len(data))  # a member of weight 0 may be empty
    is_exact = data.fills_samples or samples % num_samples == 0
    return Consumed(samples, round(samples * data.mean_tokens), samples / num_samples, is_exact)


class MixedSamples:
    """Several datasets, and whose turn each position is.

    Attributes:
        datasets: {name: dataset}.
        schedule: whose turn each position is.
    """

    datasets: dict[str, SplitSamples]
    schedule: Schedule

    def consumed(self, position: int) -> dict[str, Consumed]:
        """Count what is read of each member before a position."""
        counts = self.schedule.counts_before(position).tolist()
        return {name: consumed(data, count) for (name, data), count in zip(self.datasets.items(), counts, strict=True)}


#: a TokenDataset or a Mixture
SampleSource: TypeAlias = SplitSamples | MixedSamples


class Member(NamedTuple):
    """A dataset of a stream, and the order of its samples."""

    dataset: SplitSamples
    order: Order

    def fingerprint(self) -> DatasetFingerprint:
        """Describe what determines the sample at a position, and what a model learns from it."""
        data, order, manifest = self.dataset, self.order, self.dataset.shards.manifest
        return DatasetFingerprint(
            dataset=manifest.dataset,
            version=manifest.version,
            split=data.split,
            seq_len=data.seq_len,
            packing=data.packing,
            labels=data.format.labels,
            mask_documents=data.format.mask_documents,
            order=order.name,
            order_version=ORDER_VERSION,
            lanes=order.lanes if order.name == "block" else None,
            seed=order.seed,
            learn=list(data.format.learn) if isinstance(data.format.learn, tuple) else data.format.learn,
            part=list(data.selection.part) if data.selection.part else None,
            source=data.source,
        )


class Stream:
    """An endless global sequence of samples that the ranks of a loader share.

    A dataset is read epoch after epoch, each in its own order; the datasets of a mixture take turns.

    Args:
        source: a TokenDataset or a Mixture.
        order, seed, lanes: of each dataset's own samples.

    Attributes:
        members: the datasets by name; a dataset alone has the name None.
        mixture: whose turn each position is; None for a dataset alone.
        format: the form of a batch.
        num_samples: in an epoch; None for a mixture, which has no epochs.
        is_remote: whether a store is.
        opens_slowly: whether opening shards takes so long that it should begin ahead of need.

    Raises TypeError if the source is neither, ValueError if an argument is out of range or a dataset has no samples.
    """

    def __init__(self, source: SampleSource, order: str, seed: int, lanes: int | None) -> None:
        if not isinstance(source, SplitSamples | MixedSamples):
            raise TypeError(f"the source must be a TokenDataset or a Mixture, not a {type(source).__name__}")
        self.mixture = source if isinstance(source, MixedSamples) else None
        self._lanes = None if lanes is None else checked_int("lanes", lanes, 1)
        splits = [source] if isinstance(source, SplitSamples) else [*source.datasets.values()]
        names = [None] if isinstance(source, SplitSamples) else [*source.datasets]
        shares = self.mixture.schedule.first_shares() if self.mixture else [1.0]
        self.members: dict[str | None, Member] = {}
        for name, data, share in zip(names, splits, shares, strict=True):
            # By its share when it joins: all members together read about 64 shards side by side.
            most = min(len(data.counts), ceil(share * DEFAULT_LANES)) or 1
            self.members[name] = Member(data, Order(order, data.counts, seed, lanes or most))
            if not self.members[name].order.num_samples:
                raise ValueError(f"{'' if name is None else f'member {name!r}: '}{data.why_empty()}")
        self._splits, self._table = splits, SampleTable(splits)
        self._orders = Orders([member.order for member in self.members.values()])
        self._num_samples = np.array([member.order.num_samples for member in self.members.values()])
        if self.mixture:
            _share_limits(splits)
        learn = next((data.format.learn for data in splits if data.format.learn is not None), None)
        self.format = replace(splits[0].format, learn=learn)
        self.num_samples = None if self.mixture else self.members[None].order.num_samples
        self.is_remote = any(data.shards.cache is not None for data in splits)
        self.opens_slowly = self.is_remote or any(data.plans_shards for data in splits)

    def describe(self) -> list[str]:
        """Describe what is read, in which order, as lines of text."""
        lines = []
        for name, (data, order) in self.members.items():
            lanes = f", {order.lanes} lanes" if order.name == "block" else ""
            lines += [*([] if name is None else [f"member    {name}"]), *data.describe()]
            lines.append(f"order     {order.name}{lanes}, seed {order.seed}")
        return lines + (self.mixture.schedule.describe(self.mixture.datasets) if self.mixture else [])

    def fingerprint(self) -> Fingerprint:
        """Describe what determines the sample at a position, and what a model learns from it."""
        members = {str(name): member.fingerprint() for name, member in self.members.items()}
        if self.mixture is None:
            return members["None"]
        stages = [FingerprintStage(stage.start, stage.weights) for stage in self.mixture.schedule.stages]
        return MixtureFingerprint(members, list(members), stages, SCHEDULE_VERSION, self._lanes)

    def turns(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        """Find the number of the member that takes each of (n,) positions, and the position in its own stream."""
        return self.mixture.schedule.turns(positions) if self.mixture else (np.zeros_like(positions), positions)

    def positions(self, name: str | None, own: Int64s) -> Int64s:
        """Find the positions at (n,) positions of a member's own, the inverse of `turns`; -1 if it gets no turn."""
        return own if self.mixture is None else self.mixture.schedule.positions(list(self.members).index(name), own)

    def window(self, positions: Int64s, num_rows: int) -> TokenWindow:
        """Find the rows of the samples at (n,) positions; they are padded to `num_rows`."""
        numbers, own = self.turns(positions)
        rows = self._table.locate(self._splits, self._orders.samples(numbers, own))
        epochs = np.zeros_like(self._num_samples)
        epochs[numbers[::-1]] = (own // self._num_samples[numbers])[::-1]  # of equal numbers, the first row comes last
        return TokenWindow(self._splits, self._table, rows, num_rows, self.format, epochs)

    def shards_of(self, positions: Int64s) -> Iterator[tuple[SplitSamples, list[int]]]:
        """Yield the shards that hold the samples at (n,) positions, by dataset, in order of first need."""
        numbers, own = self.turns(positions)
        firsts = np.zeros_like(self._num_samples)
        firsts[numbers[::-1]] = own[::-1]
        is_near = own < (firsts + self._num_samples)[numbers]  # later epochs have the same shards
        found = self._table.shards_of(self._orders.samples(numbers[is_near], own[is_near]))
        shards, first = np.unique(found, return_index=True)
        in_order = shards[np.lexsort((first, self._table.splits[shards]))]
        for number, indices in self._table.by_split(in_order):
            yield self._splits[number], indices

    def consumed(self, position: int) -> dict[str, Consumed]:
        """Count what is read of each member before a position, of a dataset alone by its own name."""
        if self.mixture:
            return self.mixture.consumed(position)
        data = self.members[None].dataset
        return {data.shards.manifest.dataset: consumed(data, position)}

    def mapped_bytes(self) -> int:
        """Count the bytes of the open files."""
        return sum(each.num_bytes(index) for data in self._splits for each in data.files for index in list(each.opened))


def _share_limits(datasets: Sequence[SplitSamples]) -> None:
    """Let the members of a mixture share one limit of open shards, and one of open masks, each the lowest of theirs."""
    for kind in range(2):
        files = [data.files[kind] for data in datasets if kind < len(data.files)]
        limit = OpenFiles(min((each.options.max_open_shards for each in files), default=1))
        for each in files:
            each.share_limit(limit)
