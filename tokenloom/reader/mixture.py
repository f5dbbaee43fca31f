"""A mixture of datasets; the global stream of samples that ranks share, of a dataset or a mixture; and its state.

A position of a stream is one sample, whatever the number of ranks. A window says where the tokens of samples are. The
state is the fingerprint of the stream and the number of samples that all ranks have taken, as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, NamedTuple, TypeAlias, TypedDict, cast

import numpy as np

from tokenloom.errors import FormatError, TokenloomError
from tokenloom.reader.arguments import checked_int
from tokenloom.reader.order import ORDER_VERSION, Order, Schedule
from tokenloom.reader.prefetch import html_table
from tokenloom.reader.samples import SplitSamples
from tokenloom.reader.window import TokenWindow, WindowPart
from tokenloom.storage.formats.arrays import Int64s
from tokenloom.storage.formats.manifest import TokenizerEntry
from tokenloom.storage.formats.records import Rule, decode_record, fields_of
from tokenloom.wording import described_tokenizer

STATE_VERSION = 1
_SHARED_OPTIONS = ("seq_len", "packing", "labels", "fields", "cu_seqlens_length", "mask_documents")
_DIFFER = "members of a mixture must have the same {}: {!r} has {}, {!r} has {}"
#: a fingerprint as JSON; users know its fields
Json: TypeAlias = dict[str, Any]  # type: ignore[explicit-any]


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


class FingerprintStage(NamedTuple):
    """The weights of a mixture from a sample on."""

    from_sample: int
    weights: list[int]  # one for each member, in order


@dataclass(frozen=True, slots=True)
class MixtureFingerprint:
    """What determines the sample at a position of the stream of a mixture."""

    members: dict[str, DatasetFingerprint]
    names: list[str]  # the members, in order
    weights: list[FingerprintStage]
    lanes: int | None  # the argument of the loader, for all members


Fingerprint: TypeAlias = DatasetFingerprint | MixtureFingerprint


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
    streams = [fields]
    if isinstance(fingerprint, MixtureFingerprint):
        fields["weights"] = [list(stage) for stage in fingerprint.weights]
        streams = [*fields["members"].values()]
    for stream in streams:
        if stream["learn"] is None:
            del stream["learn"]
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
    if not mixture.weights or any(len(stage.weights) != len(mixture.names) for stage in mixture.weights):
        raise FormatError("not a loader state: stream.weights must have a weight for each member in each stage")
    return mixture


def check_state(state: object, fingerprint: Fingerprint) -> int:
    """Read the number of samples taken; raise TokenloomError if the state is not of a stream with `fingerprint`."""
    decoded = decode_state(state)
    if differences := _differences(decoded["stream"], _to_json(fingerprint)):
        is_readable = not any("order_version is" in each for each in differences)
        hint = "; TokenLoader.from_state opens the stream of a state" if is_readable else ""
        raise TokenloomError(f"the state belongs to a different stream: {'; '.join(differences)}{hint}")
    return decoded["samples"]


def _differences(theirs: Mapping[str, object], mine: Mapping[str, object], path: str = "") -> list[str]:
    found = []
    for name in sorted({*theirs, *mine}):
        a, b = theirs.get(name), mine.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            found += _differences(a, b, f"{path}{name}.")
        elif a != b:
            found.append(f"{path}{name} is {a!r} in the state, {b!r} in the loader")
    return found


class Mixture:
    """Several datasets by weight; a weight counts samples.

    The field "member" of the datasets says which of them each sample of a batch is of.

    Args:
        members: {name: (dataset, weight)}; all have one tokenizer, seq_len, packing, labels and fields, and those with
            conversations one `learn`. Weights are finite numbers from 0. Their ratios hold exactly if they make a
            period of at most 100,000 samples, else to one part in 100,000.
        stages: later weights as [(from_sample, {name: weight}), ...], counted in samples of the whole stream.

    Attributes:
        datasets: {name: dataset}.

    Raises ValueError if members differ, weights are out of range, or a stage names other members.
    """

    def __init__(
        self,
        members: Mapping[str, tuple[SplitSamples, float]],
        stages: Sequence[tuple[int, Mapping[str, float]]] = (),
    ) -> None:
        if not members:
            raise ValueError("a mixture must have at least one member")
        for name, member in members.items():
            if not (isinstance(name, str) and isinstance(member, tuple) and isinstance(member[0], SplitSamples)):
                raise TypeError(f"a member of a mixture must be name: (TokenDataset, weight), not {name!r}: {member!r}")
        self.datasets = {name: dataset for name, (dataset, _) in members.items()}
        _check_alike(self.datasets)
        for start, weights in stages:
            if set(weights) != set(members):
                raise ValueError(f"the stage from sample {start} names {sorted(weights)}, not {sorted(members)}")
        later = [(checked_int("from_sample", at), [weights[name] for name in members]) for at, weights in stages]
        self.schedule = Schedule([(0, [weight for _, weight in members.values()]), *later])

    def __repr__(self) -> str:
        names = ", ".join(
            f"{name}: {w}" for name, w in zip(self.datasets, self.schedule.stages[0].weights, strict=True)
        )
        return f"Mixture({names})"

    def _repr_html_(self) -> str:
        lines = [line for name, data in self.datasets.items() for line in (f"member    {name}", *data.describe())]
        return html_table("Mixture", [*lines, *self.describe_shares()])

    def describe_shares(self) -> list[str]:
        """Describe the shares of the members, as lines of text."""
        lines = []
        for stage in self.schedule.stages:
            weights, total = zip(self.datasets, stage.weights, strict=True), sum(stage.weights)
            shares = ", ".join(f"{name} {weight / total:.4g}" for name, weight in weights)
            lines.append(f"mixture   from sample {stage.start:,}: {shares}")
        return lines


def _check_alike(datasets: Mapping[str, SplitSamples]) -> None:
    first_name, first = next(iter(datasets.items()))
    for name, data in datasets.items():
        mine, theirs = (each.shards.manifest.tokenizer for each in (first, data))
        if mine.fingerprint != theirs.fingerprint:
            raise ValueError(
                f"members of a mixture must have the same tokenizer: {first_name!r} has {_described(mine)}, "
                f"{name!r} has {_described(theirs)}; build one of them with the tokenizer of the other"
            )
        for option in _SHARED_OPTIONS:
            a, b = (each.packing if option == "packing" else getattr(each.format, option) for each in (first, data))
            if a != b:
                raise ValueError(_DIFFER.format(option, first_name, a, name, b))
    learned = [(name, data.format.learn) for name, data in datasets.items() if data.format.learn is not None]
    for name, learn in learned:  # members without conversations are learned whole
        if learn != learned[0][1]:
            raise ValueError(_DIFFER.format("learn", *learned[0], name, learn))


def _described(tokenizer: TokenizerEntry) -> str:
    return f"{described_tokenizer(fields_of(tokenizer))}, fingerprint {tokenizer.fingerprint[:8]}..."


#: a TokenDataset or a Mixture
SampleSource: TypeAlias = SplitSamples | Mixture


class Member(NamedTuple):
    """A dataset of a stream, and the order of its samples."""

    dataset: SplitSamples
    order: Order

    def describe(self) -> list[str]:
        """Describe what is read, in which order, as lines of text."""
        lanes = f", {self.order.lanes} lanes" if self.order.name == "block" else ""
        return [*self.dataset.describe(), f"order     {self.order.name}{lanes}, seed {self.order.seed}"]

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
        )


class Turns(NamedTuple):
    """Some positions of a stream that one member takes."""

    name: str | None  # None in the stream of a dataset alone
    number: int  # its position among the members
    member: Member
    rows: Int64s  # (n,) indices of these positions among all that were asked for
    positions: Int64s  # (n,) positions in the member's own stream


class Stream:
    """An endless global sequence of samples that the ranks of a loader share.

    A dataset is read epoch after epoch, each in its own order; the datasets of a mixture take turns.

    Args:
        source: a TokenDataset or a Mixture.
        order, seed, lanes: of each dataset's own samples.

    Attributes:
        members: the datasets by name; a dataset alone has the name None.
        format: the form of a batch.
        num_samples: in an epoch; None for a mixture, which has no epochs.
        is_remote: whether a store is.
        opens_slowly: whether opening shards takes so long that it should begin ahead of need.

    Raises TypeError if the source is neither, ValueError if an argument is out of range or a dataset has no samples.
    """

    def __init__(self, source: SampleSource, order: str, seed: int, lanes: int | None) -> None:
        if not isinstance(source, SplitSamples | Mixture):
            raise TypeError(f"the source must be a TokenDataset or a Mixture, not a {type(source).__name__}")
        self._mixture = source if isinstance(source, Mixture) else None
        datasets = [source] if isinstance(source, SplitSamples) else [*source.datasets.values()]
        names = [None] if isinstance(source, SplitSamples) else [*source.datasets]
        for data in datasets:
            if not data.counts.any():
                raise ValueError(data.why_empty())
        self._lanes = None if lanes is None else checked_int("lanes", lanes, 1)
        members = [Member(data, Order(order, data.counts, seed, lanes)) for data in datasets]
        self.members: dict[str | None, Member] = dict(zip(names, members, strict=True))
        learn = next((data.format.learn for data in datasets if data.format.learn is not None), None)
        self.format = replace(datasets[0].format, learn=learn)
        self.num_samples = None if self._mixture else members[0].order.num_samples
        self.is_remote = any(data.shards.cache is not None for data in datasets)
        self.opens_slowly = self.is_remote or any(data.plans_shards for data in datasets)

    def describe(self) -> list[str]:
        """Describe what is read, in which order, as lines of text."""
        lines = []
        for name, member in self.members.items():
            lines += [*([] if name is None else [f"member    {name}"]), *member.describe()]
        return lines + (self._mixture.describe_shares() if self._mixture else [])

    def fingerprint(self) -> Fingerprint:
        """Describe what determines the sample at a position, and what a model learns from it."""
        members = {str(name): member.fingerprint() for name, member in self.members.items()}
        if self._mixture is None:
            return members["None"]
        stages = [FingerprintStage(stage.start, stage.weights) for stage in self._mixture.schedule.stages]
        return MixtureFingerprint(members, list(members), stages, self._lanes)

    def turns(self, positions: Int64s) -> Iterator[Turns]:
        """Divide (n,) positions among the members that take them."""
        if self._mixture is None:
            yield Turns(None, 0, self.members[None], np.arange(len(positions)), positions)
            return
        numbers, ordinals = self._mixture.schedule.turns(positions)
        for number, (name, member) in enumerate(self.members.items()):
            rows = np.flatnonzero(numbers == number)
            if len(rows):
                yield Turns(name, number, member, rows, ordinals[rows])

    def positions(self, name: str | None, own: Int64s) -> Int64s:
        """Find the positions at (n,) positions of a member's own, the inverse of `turns`; -1 if it gets no turn."""
        return own if self._mixture is None else self._mixture.schedule.positions(list(self.members).index(name), own)

    def window(self, positions: Int64s, num_rows: int) -> TokenWindow:
        """Find the rows of the samples at (n,) positions; they are padded to `num_rows`."""
        parts = []
        for turns in self.turns(positions):
            data, order = turns.member
            pieces = data.locate(order.samples(turns.positions))
            epoch = int(turns.positions[:1].sum()) // order.num_samples
            parts.append(WindowPart(data.files, turns.rows, pieces, turns.number, epoch))
        return TokenWindow(parts, num_rows, self.format)

    def shards_of(self, positions: Int64s) -> Iterator[tuple[SplitSamples, list[int]]]:
        """Yield the shards that hold the samples at (n,) positions, by dataset, in order of first need."""
        for turns in self.turns(positions):
            (data, order), own = turns.member, turns.positions
            near = own[own < own[:1].sum() + order.num_samples]  # later epochs have the same shards
            shards, first = np.unique(data.shards_of(order.samples(near)), return_index=True)
            yield data, shards[np.argsort(first)].tolist()

    def mapped_bytes(self) -> int:
        """Count the bytes of the open files."""
        files = [each for member in self.members.values() for each in member.dataset.files]
        return sum(each.num_bytes(index) for each in files for index in list(each.opened))
