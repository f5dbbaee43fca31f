"""Streams: the endless global sequence of samples that a loader's ranks share, of one dataset or of a mixture.

A position g of a stream names one sample, whatever the number of ranks; `plan` says where its tokens lie.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from tokenloom.reader.arguments import whole
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.mixture import Mixture
from tokenloom.reader.order.epochs import ORDER_VERSION, Int64s, Order
from tokenloom.reader.shards.assembly import BatchFormat, Block, Part


class Stream(Protocol):
    """What a loader needs from a dataset or a mixture."""

    format: BatchFormat
    num_samples: int | None  # of an epoch; None for a mixture, which has none
    datasets: list[TokenDataset]

    @property
    def is_remote(self) -> bool:
        """Whether a shard of it may have to be downloaded."""

    @property
    def opens_slowly(self) -> bool:
        """Whether shards are better opened ahead of need."""

    def fingerprint(self) -> dict[str, Any]:
        """Return all that decides the sample at a position, as JSON."""

    def plan(self, positions: Int64s, num_places: int) -> Block:
        """Return where the samples at (n,) positions lie, padded to `num_places` rows."""

    def shards_of(self, positions: Int64s) -> Iterator[tuple[TokenDataset, list[int]]]:
        """Yield the shards that the samples at (n,) positions lie in, by dataset, in order of first need."""

    def epochs_at(self, position: int) -> dict[str, float]:
        """Return how many epochs of each dataset lie before `position`."""

    def memory(self) -> dict[str, int]:
        """Return the bytes of the shards that are mapped."""


class _OfDatasets:
    """What follows from the datasets of a stream."""

    datasets: list[TokenDataset]

    @property
    def is_remote(self) -> bool:
        """See Stream."""
        return any(dataset.files.is_remote for dataset in self.datasets)

    @property
    def opens_slowly(self) -> bool:
        """See Stream."""
        return self.is_remote or any(dataset.packing != "concat" for dataset in self.datasets)

    def memory(self) -> dict[str, int]:
        """See Stream."""
        return {"mapped": sum(dataset.shards.num_bytes for dataset in self.datasets)}


class DatasetStream(_OfDatasets):
    """The stream of one dataset: epoch after epoch, each in an order of its own."""

    def __init__(self, dataset: TokenDataset, order: str, seed: int, lanes: int | None) -> None:
        if not len(dataset):
            where = "shard" if dataset.packing == "concat" else "document"
            raise ValueError(
                f"{dataset.reference}, split {dataset.split!r}, is empty: no {where} has "
                f"seq_len + 1 = {dataset.seq_len + 1} tokens to give; choose a smaller seq_len, or another packing"
            )
        self.dataset, self.format = dataset, dataset.format
        self.datasets = [dataset]
        self.order = Order(order, dataset.counts, seed, lanes)
        self.num_samples: int | None = len(dataset)

    def fingerprint(self) -> dict[str, Any]:
        """See Stream."""
        return self.dataset.fingerprint() | {
            "order": self.order.name,
            "order_version": ORDER_VERSION,
            "lanes": self.order.lanes if self.order.name == "block" else None,
            "seed": self.order.seed,
        }

    def plan(self, positions: Int64s, num_places: int) -> Block:
        """See Stream."""
        part = self.part(positions, np.arange(len(positions)))
        return Block([part], num_places, self.format)

    def part(self, positions: Int64s, places: Int64s) -> Part:
        """Return the rows of (n,) positions, which go to `places` of a block."""
        return Part(self.dataset, places, self.dataset.plan(self.order.samples(positions)))

    def shards_of(self, positions: Int64s) -> Iterator[tuple[TokenDataset, list[int]]]:
        """See Stream."""
        near = positions[positions < positions[:1].sum() + len(self.dataset)]  # later epochs have the same shards
        shards, first = np.unique(self.dataset.shards_of(self.order.samples(near)), return_index=True)
        yield self.dataset, shards[np.argsort(first)].tolist()

    def epochs_at(self, position: int) -> dict[str, float]:
        """See Stream."""
        return {self.dataset.manifest["dataset"]: position / len(self.dataset)}


class MixtureStream(_OfDatasets):
    """The stream of a mixture: its table says whose turn it is, and each member's stream goes on from where it was."""

    def __init__(self, mixture: Mixture, order: str, seed: int, lanes: int | None) -> None:
        self.mixture, self._lanes = mixture, None if lanes is None else whole("lanes", lanes, 1)
        self.members = [DatasetStream(data, order, seed, lanes) for data in mixture.datasets.values()]
        self.format = self.members[0].format
        self.datasets = list(mixture.datasets.values())
        self.num_samples: int | None = None

    def fingerprint(self) -> dict[str, Any]:
        """See Stream."""
        names = list(self.mixture.datasets)
        members = {name: member.fingerprint() for name, member in zip(names, self.members, strict=True)}
        return {"members": members, "names": names, "weights": self.mixture.schedule.to_json(), "lanes": self._lanes}

    def plan(self, positions: Int64s, num_places: int) -> Block:
        """See Stream."""
        members, ordinals = self.mixture.schedule.turns(positions)
        parts = []
        for index, member in enumerate(self.members):
            places = np.flatnonzero(members == index)
            if len(places):
                parts.append(member.part(ordinals[places], places))
        return Block(parts, num_places, self.format)

    def shards_of(self, positions: Int64s) -> Iterator[tuple[TokenDataset, list[int]]]:
        """See Stream."""
        members, ordinals = self.mixture.schedule.turns(positions)
        for index, member in enumerate(self.members):
            yield from member.shards_of(ordinals[members == index])

    def epochs_at(self, position: int) -> dict[str, float]:
        """See Stream."""
        counts = self.mixture.schedule.counts_before(position)
        sizes = (len(data) for data in self.mixture.datasets.values())
        return {name: n / size for name, n, size in zip(self.mixture.datasets, counts, sizes, strict=True)}


def make_stream(
    source: TokenDataset | Mixture, order: str, seed: int, lanes: int | None
) -> DatasetStream | MixtureStream:
    """Return the stream of a dataset or a mixture; ValueError if an option is out of range or there is no sample."""
    if not isinstance(source, TokenDataset | Mixture):
        raise TypeError(f"the source is a TokenDataset or a Mixture, not a {type(source).__name__}")
    if isinstance(source, Mixture):
        return MixtureStream(source, order, seed, lanes)
    return DatasetStream(source, order, seed, lanes)
