"""The global stream of samples that ranks share, of a dataset or a mixture; its fingerprint, and the state of a loader.

A position of a stream is one sample, whatever the number of ranks. A window says where the tokens of samples are. A
state is the fingerprint of a stream and the number of samples that all ranks have taken, as JSON.

Two streams are equal up to a position if every stage of weights that begins before it is equal, and every member with a
weight in one of them. So a state amends a mixture: what comes after its position is free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Annotated, Any, NamedTuple, TypeAlias, TypedDict, cast

import numpy as np

from tokenloom.errors import FormatError, TokenloomError, checked_int
from tokenloom.reader.samples import Json, SampleTable, SplitSamples
from tokenloom.reader.shards import OpenFiles
from tokenloom.reader.streams.order import DEFAULT_LANES, ORDER_VERSION, Order, Orders
from tokenloom.reader.streams.schedule import SCHEDULE_VERSION, TOTAL_WEIGHT, Schedule
from tokenloom.reader.window import TokenWindow
from tokenloom.storage.formats.arrays import Int64s
from tokenloom.storage.formats.records import Rule, decode_record

STATE_VERSION = 1


def _is_policy(learn: object) -> bool:
    return isinstance(learn, str) or (isinstance(learn, list) and all(isinstance(role, str) for role in learn))


_Learn = Annotated[str | list[str], Rule(_is_policy, "a policy or a list of roles")]


@dataclass(frozen=True, slots=True)
class DatasetFingerprint:
    """What determines the sample at a position of the stream of a dataset, and what a model learns from it."""

    dataset: str
    version: str
    split: str
    seq_len: int
    packing: str
    labels: str
    mask_documents: bool
    order: str
    order_version: int
    lanes: int | None  # None unless the order is "block"
    seed: int
    learn: _Learn | None = None  # absent from the JSON of a version without conversations
    part: list[float] | None = None  # absent from the JSON of a whole split, as `source`
    source: str | None = None


class FingerprintStage(NamedTuple):
    """The weights of a mixture from a sample on."""

    from_sample: int
    weights: list[int]  # one for each member, in order; their sum is 2**42


@dataclass(frozen=True, slots=True)
class MixtureFingerprint:
    """What determines the sample at a position of the stream of a mixture."""

    members: dict[str, DatasetFingerprint]
    names: list[str]  # the members, in order
    weights: list[FingerprintStage]
    schedule_version: int
    lanes: int | None  # the argument of the loader, for all members
    max_epochs: dict[str, float] | None = None  # absent from the JSON of a mixture without, as num_samples
    num_samples: int | None = None

    def history(self, end: float) -> Json:
        """Say what determines the stream before a position, with shares for weights, to compare it."""
        shares = {
            start: {name: weight / TOTAL_WEIGHT for name, weight in zip(self.names, weights, strict=True) if weight}
            for start, weights in self.weights
            if start < end
        }
        names = [name for name in self.names if any(name in stage for stage in shares.values())]
        members = {name: asdict(self.members[name]) for name in names}
        return {"names": names, "members": members, "weights": shares, "schedule_version": self.schedule_version}


Fingerprint: TypeAlias = DatasetFingerprint | MixtureFingerprint


# ---- what is read in which order


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
        max_epochs, num_samples: what a member may have of the samples of the run, in amendments too.
    """

    datasets: dict[str, SplitSamples]
    schedule: Schedule
    max_epochs: dict[str, float]
    num_samples: int | None

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
            seed=0 if order.name == "sequential" else order.seed,  # which that order does not use
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
        opens_slowly: whether opening shards takes so long that it should begin ahead of need.

    Raises TypeError if the source is neither, ValueError if an argument is out of range or a dataset has no samples.
    """

    def __init__(self, source: SampleSource, order: str, seed: int, lanes: int | None) -> None:
        if not isinstance(source, SplitSamples | MixedSamples):
            raise TypeError(f"the source must be a TokenDataset or a Mixture, not a {type(source).__name__}")
        self.mixture = source if isinstance(source, MixedSamples) else None
        self._lanes = None if lanes is None else checked_int("lanes", lanes, 1)
        if order != "block":
            self._lanes = None  # as other orders have none
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
        self._turns = (np.zeros(0, np.int64),) * 3  # the last positions, and their members and places there
        self._orders = Orders([member.order for member in self.members.values()])
        self._num_samples = np.array([member.order.num_samples for member in self.members.values()])
        if self.mixture or splits[0].shards.open_files.limit < splits[0].shards.options.max_open_shards:
            _share_limits(splits)
        learn = next((data.format.learn for data in splits if data.format.learn is not None), None)
        self.format = replace(splits[0].format, learn=learn)
        self.num_samples = None if self.mixture else self.members[None].order.num_samples
        self.opens_slowly = any(data.shards.cache is not None or data.plans_shards for data in splits)

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
        limits = self.mixture.max_epochs or None, self.mixture.num_samples
        return MixtureFingerprint(members, list(members), stages, SCHEDULE_VERSION, self._lanes, *limits)

    def turns(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        """Find the number of the member that takes each of (n,) positions, and the position in its own stream."""
        if self.mixture is None:
            return np.zeros_like(positions), positions
        known, numbers, own = self._turns  # another thread may replace them
        if not np.array_equal(known[: len(positions)], positions):  # else they were found when shards were opened ahead
            _, numbers, own = self._turns = positions, *self.mixture.schedule.turns(positions)
        return numbers[: len(positions)], own[: len(positions)]

    def positions(self, name: str | None, own: Int64s) -> Int64s:
        """Find the positions at (n,) positions of a member's own, the inverse of `turns`; -1 if it gets no turn."""
        return own if self.mixture is None else self.mixture.schedule.positions(list(self.members).index(name), own)

    def window(self, positions: Int64s, num_rows: int) -> TokenWindow:
        """Find the rows of the samples at (n,) positions; they are padded to `num_rows`."""
        numbers, own = self.turns(positions)
        rows = self._table.locate(self._splits, self._orders.samples(numbers, own))
        epochs = np.zeros_like(self._num_samples)
        epochs[numbers[::-1]] = (own // self._num_samples[numbers])[::-1]  # where a number repeats, its first row wins
        return TokenWindow(self._splits, self._table, rows, num_rows, self.format, epochs)

    def shards_of(self, positions: Int64s) -> list[tuple[SplitSamples, int]]:
        """List the shards that hold the samples at (n,) positions, with their datasets, in order of first need.

        In this order, members share by weight what is done ahead.
        """
        numbers, own = self.turns(positions)
        firsts = np.zeros_like(self._num_samples)
        firsts[numbers[::-1]] = own[::-1]
        is_near = own < (firsts + self._num_samples)[numbers]  # later epochs have the same shards
        found = self._table.shards_of(self._orders.samples(numbers[is_near], own[is_near]))
        shards, first = np.unique(found, return_index=True)
        in_order, table = shards[np.argsort(first)], self._table
        splits = [self._splits[number] for number in table.splits[in_order].tolist()]
        return [*zip(splits, table.shards[in_order].tolist(), strict=True)]

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
    """Let the splits of a stream share one limit of open shards, and one of open masks, each the lowest of theirs.

    A member of a mixture has its own limit again in a stream of its own.
    """
    for kind in range(2):
        files = [data.files[kind] for data in datasets if kind < len(data.files)]
        limit = OpenFiles(min((each.options.max_open_shards for each in files), default=1))
        for each in files:
            each.share_limit(limit)


# ---- the state of a loader


class LoaderState(TypedDict):
    """Where a loader is."""

    tokenloom_state: int
    stream: Json
    samples: int  # taken by all ranks together


@dataclass(frozen=True, slots=True)
class _State:
    """The rules of the fields of a LoaderState."""

    tokenloom_state: Annotated[int, Rule(STATE_VERSION.__eq__, f"{STATE_VERSION}; a newer one needs a newer tokenloom")]
    stream: dict[str, object]
    samples: Annotated[int, Rule(range(2**62).__contains__, "in [0, 2**62)")]


def make_state(fingerprint: Fingerprint, samples: int) -> LoaderState:
    """Make the state of a stream of which all ranks together have taken `samples` samples."""
    return {"tokenloom_state": STATE_VERSION, "stream": _to_json(fingerprint), "samples": samples}


def _to_json(fingerprint: Fingerprint) -> Json:
    fields = asdict(fingerprint)
    if isinstance(fingerprint, MixtureFingerprint):
        fields["weights"] = [list(stage) for stage in fingerprint.weights]
    for stream in (fields, *fields.get("members", {}).values()):
        for name in ("learn", "part", "source", "max_epochs", "num_samples"):
            if name in stream and stream[name] is None:
                del stream[name]
    return fields


def decode_state(state: object) -> LoaderState:
    """Check that `state` is the state of a loader; raise TokenloomError, which names the field, if it is not."""
    fields = dict(state) if isinstance(state, Mapping) else state
    decode_stream(decode_record(_State, fields, "not a loader state").stream)
    return cast(LoaderState, state)


def decode_stream(stream: Json) -> Fingerprint:
    """Decode the fingerprint in the stream of a state; raise FormatError, which names the field, if it is not one."""
    if "members" not in stream:
        return decode_record(DatasetFingerprint, stream, "not a loader state", "stream")
    mixture = decode_record(MixtureFingerprint, stream, "not a loader state", "stream")
    if not mixture.names or sorted(mixture.members) != sorted(mixture.names):
        raise FormatError("not a loader state: stream.names must be those of its members")
    weights = [stage.weights for stage in mixture.weights]
    if not weights or any(len(each) != len(mixture.names) or min(each) < 0 or not any(each) for each in weights):
        raise FormatError("not a loader state: stream.weights must have one from 0 a member in each stage, not all 0")
    return mixture


def check_state(state: object, fingerprint: Fingerprint, *, amend: bool = False) -> int:
    """Read the number of samples taken.

    Args:
        state: of a loader.
        fingerprint: of the stream that continues from the state.
        amend: whether a mixture may differ from the state in what comes after these samples.

    Raises TokenloomError, which names the differences, if the state is not of this stream.
    """
    decoded = decode_state(state)
    theirs, samples = decode_stream(decoded["stream"]), decoded["samples"]
    differences = _compare(theirs, fingerprint, float("inf"))
    changed = _compare(theirs, fingerprint, samples)
    if not differences or (amend and not changed):
        return samples
    if amend:
        raise TokenloomError(f"the amendment changes what was read before sample {samples:,}: {'; '.join(changed)}")
    if not changed:
        hint = f"; it begins like this up to sample {samples:,}: load_state_dict(state, amend=True) continues with it"
    else:
        is_readable = not any("_version is" in each for each in differences)
        hint = "; TokenLoader.from_state opens the stream of a state" if is_readable else ""
    raise TokenloomError(f"the state belongs to a different stream: {'; '.join(differences)}{hint}")


def _compare(theirs: Fingerprint, mine: Fingerprint, end: float) -> list[str]:
    """Say how the stream of a state and that of a loader differ before a position."""
    if isinstance(theirs, MixtureFingerprint) and isinstance(mine, MixtureFingerprint):
        return _differences(theirs.history(end), mine.history(end))
    return _differences(_to_json(theirs), _to_json(mine))


def _differences(theirs: Mapping[Any, object], mine: Mapping[Any, object], path: str = "") -> list[str]:  # type: ignore[explicit-any]
    found = []
    for name in sorted({*theirs, *mine}):
        a, b = theirs.get(name), mine.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            found += _differences(a, b, f"{path}{name}.")
        elif a != b:
            found.append(f"{path}{name} is {a!r} in the state, {b!r} in the loader")
    return found
