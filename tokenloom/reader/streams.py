"""Streams: the endless global sequence of samples that the ranks of a loader share, of a dataset or of a mixture.

A position of a stream is one sample, whatever the number of ranks. A window says where its tokens are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypedDict, runtime_checkable

import numpy as np

from tokenloom.reader.arguments import checked_int
from tokenloom.reader.order import ORDER_VERSION, Order, Schedule
from tokenloom.reader.shards.batch_format import BatchFormat
from tokenloom.reader.shards.disk_reads import block_bytes
from tokenloom.reader.shards.split_samples import SplitSamples
from tokenloom.reader.shards.window import TokenWindow, WindowPart
from tokenloom.reader.state import DatasetFingerprint, Fingerprint, FingerprintStage, MixtureFingerprint
from tokenloom.storage.formats.arrays import Int64s

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class OrderOptions(TypedDict, total=False):
    """The arguments of TokenLoader that determine the order."""

    order: str
    seed: int
    lanes: int | None


class RankOptions(TypedDict, total=False):
    """The arguments of TokenLoader that say which rank this is."""

    rank: int | None
    world_size: int | None
    mesh: DeviceMesh | None
    dims: Sequence[str] | None


class StreamOptions(OrderOptions, RankOptions, total=False):
    """The keyword arguments of SampleStream."""

    batch_size: int | None
    start: int
    drop_last: bool
    num_epochs: int | None


class Turns(NamedTuple):
    """Some positions of a stream that one dataset takes."""

    member: str | None  # its name in a mixture; None in the stream of a dataset
    number: int  # its number in the mixture, from 0; 0 in the stream of a dataset
    stream: DatasetStream
    places: Int64s  # (n,) indices of these positions among all
    positions: Int64s  # (n,) the positions in the dataset's own stream


class Stream(ABC):
    """An endless sequence of samples.

    Args:
        form: what a batch holds.
        num_samples: the samples of an epoch; None for a mixture, which has no epochs.
        datasets: the datasets that hold the samples.
    """

    def __init__(self, form: BatchFormat, num_samples: int | None, datasets: list[SplitSamples]) -> None:
        self.format, self.num_samples, self.datasets = form, num_samples, datasets
        #: whether opening shards takes so long that it should begin ahead of need
        self.opens_slowly = any(dataset.files.is_remote or dataset.files.plans_shards for dataset in datasets)

    def memory(self) -> dict[str, int]:
        """Return the number of bytes that are mapped."""
        return {"mapped": sum(files.num_bytes for dataset in self.datasets for files in dataset.open_files)}

    @property
    def block_bytes(self) -> int:
        """How many bytes are read around a row of a cold file: what the disk with the largest blocks needs."""
        folders = {dataset.files.folder for dataset in self.datasets}
        return max(block_bytes(folder, self.active_bytes) for folder in folders)

    @property
    @abstractmethod
    def active_bytes(self) -> int:
        """The bytes of the shards that the order reads side by side, at most."""

    @abstractmethod
    def describe(self) -> list[str]:
        """Return what is read, in which order, as lines of text."""

    @abstractmethod
    def fingerprint(self) -> Fingerprint:
        """Return what determines the sample at a position, and what a model learns from it."""

    @abstractmethod
    def turns(self, positions: Int64s) -> Iterator[Turns]:
        """Yield who takes (n,) positions, one dataset at a time."""

    @abstractmethod
    def positions(self, member: str | None, own: Int64s) -> Int64s:
        """Return the positions of this stream at (n,) positions of a member's own: the inverse of `turns`.

        A position is -1 if the stream never gets so far.
        """

    @abstractmethod
    def window(self, positions: Int64s, num_rows: int) -> TokenWindow:
        """Return the rows of the samples at (n,) positions, padded to `num_rows`."""

    @abstractmethod
    def shards_of(self, positions: Int64s) -> Iterator[tuple[SplitSamples, list[int]]]:
        """Yield the shards that hold the samples at (n,) positions, by dataset, in order of first need."""


@runtime_checkable
class SampleSource(Protocol):
    """What a loader reads: a TokenDataset or a Mixture."""

    def stream(self, order: str, seed: int, lanes: int | None) -> Stream:
        """Return the stream of samples in an order; raise ValueError if an argument is out of range."""


def make_stream(source: SampleSource, order: str, seed: int, lanes: int | None) -> Stream:
    """Return the stream of a source; raise TypeError if it is not one, ValueError if an argument is out of range."""
    if not isinstance(source, SampleSource):
        raise TypeError(f"the source must be a TokenDataset or a Mixture, not a {type(source).__name__}")
    return source.stream(order, seed, lanes)


class DatasetStream(Stream):
    """The stream of one dataset: epoch after epoch, each in its own order."""

    def __init__(self, dataset: SplitSamples, order: str, seed: int, lanes: int | None) -> None:
        if not len(dataset):
            raise ValueError(dataset.why_empty())
        super().__init__(dataset.format, len(dataset), [dataset])
        self.dataset = dataset
        self.order = Order(order, dataset.counts, seed, lanes)

    @property
    def active_bytes(self) -> int:
        """See Stream."""
        files = self.dataset.files
        sizes = sorted(map(files.num_bytes, range(len(files.entries))), reverse=True)
        return sum(sizes[: {"block": self.order.lanes, "sequential": 1}.get(self.order.name)])

    def describe(self) -> list[str]:
        """See Stream."""
        lanes = f", {self.order.lanes} lanes" if self.order.name == "block" else ""
        return [*self.dataset.describe(), f"order     {self.order.name}{lanes}, seed {self.order.seed}"]

    def fingerprint(self) -> DatasetFingerprint:
        """See Stream."""
        data, order = self.dataset, self.order
        return DatasetFingerprint(
            dataset=data.files.manifest.dataset,
            version=data.files.manifest.version,
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
        )

    def turns(self, positions: Int64s) -> Iterator[Turns]:
        """See Stream."""
        yield Turns(None, 0, self, np.arange(len(positions)), positions)

    def positions(self, member: str | None, own: Int64s) -> Int64s:
        """See Stream."""
        return own

    def window(self, positions: Int64s, num_rows: int) -> TokenWindow:
        """See Stream."""
        return TokenWindow([self.part(positions, np.arange(len(positions)))], num_rows, self.format)

    def part(self, positions: Int64s, places: Int64s, member: int = 0) -> WindowPart:
        """Return the rows of (n,) positions, as the rows `places` of a window; `member` is the dataset's number."""
        data = self.dataset
        return WindowPart(data.open_files, places, data.locate(self.order.samples(positions)), member)

    def shards_of(self, positions: Int64s) -> Iterator[tuple[SplitSamples, list[int]]]:
        """See Stream."""
        near = positions[positions < positions[:1].sum() + len(self.dataset)]  # later epochs have the same shards
        shards, first = np.unique(self.dataset.shards_of(self.order.samples(near)), return_index=True)
        yield self.dataset, shards[np.argsort(first)].tolist()


def describe_mixture(members: Mapping[str, SplitSamples | DatasetStream], schedule: Schedule) -> list[str]:
    """Return the members of a mixture and their shares, as lines of text."""
    lines = [line for name, member in members.items() for line in (f"member    {name}", *member.describe())]
    for stage in schedule.stages:
        weights, total = zip(members, stage.weights, strict=True), sum(stage.weights)
        shares = ", ".join(f"{name} {weight / total:.4g}" for name, weight in weights)
        lines.append(f"mixture   from sample {stage.start:,}: {shares}")
    return lines


class MixtureStream(Stream):
    """The stream of a mixture: a schedule gives each position to a member, whose own stream continues there.

    Args:
        members: the streams of the members by name, all of one batch format.
        schedule: whose turn each position is.
        lanes: as given for all members.
    """

    def __init__(self, members: Mapping[str, DatasetStream], schedule: Schedule, lanes: int | None) -> None:
        datasets = [member.dataset for member in members.values()]
        forms = [dataset.format for dataset in datasets]
        learn = next((form.learn for form in forms if form.learn is not None), None)
        super().__init__(forms[0]._replace(learn=learn), None, datasets)
        self.members, self.schedule = dict(members), schedule
        self._lanes = None if lanes is None else checked_int("lanes", lanes, 1)

    @property
    def active_bytes(self) -> int:
        """See Stream."""
        return sum(member.active_bytes for member in self.members.values())

    def describe(self) -> list[str]:
        """See Stream."""
        return describe_mixture(self.members, self.schedule)

    def fingerprint(self) -> MixtureFingerprint:
        """See Stream."""
        return MixtureFingerprint(
            members={name: member.fingerprint() for name, member in self.members.items()},
            names=list(self.members),
            weights=[FingerprintStage(stage.start, stage.weights) for stage in self.schedule.stages],
            lanes=self._lanes,
        )

    def window(self, positions: Int64s, num_rows: int) -> TokenWindow:
        """See Stream."""
        parts = [turns.stream.part(turns.positions, turns.places, turns.number) for turns in self.turns(positions)]
        return TokenWindow(parts, num_rows, self.format)

    def turns(self, positions: Int64s) -> Iterator[Turns]:
        """See Stream."""
        members, ordinals = self.schedule.turns(positions)
        for index, (name, member) in enumerate(self.members.items()):
            places = np.flatnonzero(members == index)
            if len(places):
                yield Turns(name, index, member, places, ordinals[places])

    def positions(self, member: str | None, own: Int64s) -> Int64s:
        """See Stream."""
        assert member is not None  # every sample of a mixture has one
        return self.schedule.positions(list(self.members).index(member), own)

    def shards_of(self, positions: Int64s) -> Iterator[tuple[SplitSamples, list[int]]]:
        """See Stream."""
        for turns in self.turns(positions):
            yield from turns.stream.shards_of(turns.positions)
