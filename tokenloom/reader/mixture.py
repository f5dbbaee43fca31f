"""A mixture: several datasets by weight, in stages; what a run will read of each; and the source that a state names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeAlias

import numpy as np

from tokenloom.errors import TokenloomError, checked_int
from tokenloom.reader.dataset import DatasetOptions, OrderOptions, TokenDataset
from tokenloom.reader.samples import SplitSamples
from tokenloom.reader.streams.schedule import Schedule
from tokenloom.reader.streams.stream import Consumed, DatasetFingerprint, MixedSamples, decode_state, decode_stream
from tokenloom.storage.formats.records import fields_of
from tokenloom.wording import described_tokenizer

_SHARED_OPTIONS = ("seq_len", "packing", "labels", "fields", "cu_seqlens_length", "mask_documents", "learn")
_DIFFER = "members of a mixture must have the same {}: {!r} has {}, {!r} has {}"
_UNITS = ("", "tokens", "epochs")
_LEAST_SHARE, _MAX_EPOCHS = 1e-12, 1e6
_NUM_OPENED = 16  # members of a state's mixture at a time
#: a share, or "2e9 tokens", or "2.5 epochs"
Weight: TypeAlias = float | str


class MemberPlan(NamedTuple):
    """What a number of samples of a mixture read of a member."""

    name: str
    shares: tuple[float, ...]  # in each stage
    consumed: Consumed
    first_repeat: int | None  # the sample of the stream with which its second epoch begins; None if that comes later


class Mixture(MixedSamples):
    """Several datasets by weight, which may change in stages.

    A weight is a share of the samples, a finite number from 0. It may also be an amount, "2e9 tokens" or "2.5 epochs":
    a stage that is just long enough for all of its amounts reads these. A stage has one unit. At every prefix of a
    stage, each member has had its share to within two samples. The field "member" of the datasets says which of them
    each sample of a batch is of.

    Args:
        members: {name: (dataset, weight)}; all have one tokenizer, seq_len, packing, labels and fields, and those with
            conversations one `learn`.
        stages: later weights as [(from_sample, {name: weight}), ...]; from_sample counts samples of the whole stream,
            or its tokens as "3e9 tokens", each sample as seq_len.
        max_epochs: {name: number}; more epochs of the member in `num_samples` are an error, of later amendments too.
        num_samples: how many samples the run takes; only max_epochs needs it.

    Attributes:
        datasets: {name: dataset}.
        schedule: whose turn each position is.

    Raises ValueError if members differ, weights are out of range, a stage names other members, or one would pass its
    max_epochs.
    """

    def __init__(
        self,
        members: Mapping[str, tuple[SplitSamples, Weight]],
        stages: Sequence[tuple[int | str, Mapping[str, Weight]]] = (),
        *,
        max_epochs: Mapping[str, float] | None = None,
        num_samples: int | None = None,
    ) -> None:
        if not members:
            raise ValueError("a mixture must have at least one member")
        for name, member in members.items():
            if not (isinstance(member, tuple) and len(member) == 2):
                raise TypeError(f"a member of a mixture must be name: (TokenDataset, weight), not {name!r}: {member!r}")
        self.datasets, stages = {name: dataset for name, (dataset, _) in members.items()}, [*stages]
        _check_alike(self.datasets)
        for start, weights in stages:
            if set(weights) != set(members):
                raise ValueError(f"the stage from sample {start} names {sorted(weights)}, not {sorted(members)}")
        first = {name: weight for name, (_, weight) in members.items()}
        self.schedule = Schedule(
            [(self._samples_at(start), _shares_of(self.datasets, weights)) for start, weights in [(0, first), *stages]]
        )
        self._taken = 0  # before this sample the stream is fixed
        self._limit_epochs(max_epochs or {}, num_samples)

    @classmethod
    def from_state(
        cls, store: str | Mapping[str, str], state: Mapping[str, object], *, dataset: DatasetOptions | None = None
    ) -> Mixture:
        """Open the mixture that a state names, to amend it with `then`.

        Args:
            store: the store of all members, or {member: store}.
            state: of a loader.
            dataset: options of TokenDataset (fields, cache, ...).

        Raises TokenloomError if it is not the state of a mixture.
        """
        source, _ = open_source(store, state, dataset or {})
        if not isinstance(source, Mixture):
            raise TokenloomError("the state is of a dataset, not of a mixture: TokenLoader.from_state opens it")
        return source

    @classmethod
    def _of_stages(
        cls, datasets: Mapping[str, SplitSamples], stages: Sequence[tuple[int, Sequence[float]]], taken: int
    ) -> Mixture:
        """Make a mixture of stages as (from_sample, weights by member) that is fixed up to a sample."""
        mixture = cls.__new__(cls)
        mixture.datasets, mixture.schedule, mixture._taken = dict(datasets), Schedule(stages), taken
        return mixture

    def then(
        self,
        weights: Mapping[str, Weight],
        add: Mapping[str, SplitSamples] | None = None,
        *,
        from_sample: int | str | None = None,
        max_epochs: Mapping[str, float] | None = None,
        num_samples: int | None = None,
    ) -> Mixture:
        """Make the mixture that goes on with other weights.

        `load_state_dict(state, amend=True)` of its loader continues from the state of this mixture.

        Args:
            weights: from then on; a member that they don't name ends. They replace the stages that would begin later.
            add: {name: dataset} of new members.
            from_sample: where they begin, as in `stages`; None for the sample of the state, 0 without one.
            max_epochs, num_samples: as in Mixture. Those that were given before, or are in the state, hold until they
                are given anew.

        Raises ValueError as Mixture, or if the samples before the state would change.
        """
        start = self._taken if from_sample is None else self._samples_at(from_sample)
        if start < self._taken:
            raise ValueError(f"from_sample must be at least {self._taken:,}, which the state has taken, not {start:,}")
        if known := sorted(self.datasets.keys() & (add or {}).keys()):
            raise ValueError(f"add names {known}, which are members already; choose other names")
        datasets = self.datasets | dict(add or {})
        _check_alike(datasets)
        if unknown := sorted(weights.keys() - datasets.keys()):
            raise ValueError(f"weights name {unknown}, which are not members {sorted(datasets)}; pass new ones in add")
        added = [0] * (len(datasets) - len(self.datasets))
        before = [(stage.start, [*stage.weights, *added]) for stage in self.schedule.stages if stage.start < start]
        after = _shares_of(datasets, {name: weights.get(name, 0) for name in datasets})
        amended = Mixture._of_stages(datasets, [*before, (start, after)], self._taken)
        length = self.num_samples if num_samples is None else num_samples
        amended._limit_epochs(self.max_epochs | dict(max_epochs or {}), length)
        return amended

    def __repr__(self) -> str:
        return f"Mixture({', '.join(self.datasets)})"

    def plan(self, num_samples: int) -> list[MemberPlan]:
        """Count what the first samples of the stream read of each member, before anything is read."""
        shares = zip(*(stage.shares for stage in self.schedule.stages), strict=True)
        plans = []
        for of_stages, (name, read) in zip(shares, self.consumed(num_samples).items(), strict=True):
            first_repeat = self._sample_of(name, len(self.datasets[name]), num_samples) if read.epochs > 1 else None
            plans.append(MemberPlan(name, of_stages, read, first_repeat))
        return plans

    def _sample_of(self, name: str, ordinal: int, num_samples: int) -> int | None:
        """Find the sample of the stream that is the member's `ordinal`th, from 0; None if the first ones lack it."""
        found = int(self.schedule.positions([*self.datasets].index(name), np.array([ordinal]))[0])
        return found if 0 <= found < num_samples else None

    def describe(self, num_samples: int | None = None) -> str:
        """Describe the shares of the members in each stage, and what the first samples read of each, as a table.

        Args:
            num_samples: of the stream; None for those before the last stage, whose end a mixture does not know.
        """
        end = self.schedule.stages[-1].start if num_samples is None else checked_int("num_samples", num_samples)
        cells = [[str(cell) for cell in row] for row in self.plan_table(end)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)

    def plan_table(self, num_samples: int) -> list[list[str]]:
        """Lay out the plan of a number of samples: a header, and a row for each member."""
        shares = [f"from {stage.start:,}" for stage in self.schedule.stages]
        table = [["member", *shares, "samples", "tokens", "epochs", "repeats from sample"]]
        for name, of_stages, read, repeat in self.plan(num_samples):
            tokens = f"{'' if read.is_exact else 'about '}{read.tokens:,}"
            row = [name, *(f"{share:.4g}" for share in of_stages), f"{read.samples:,}", tokens, f"{read.epochs:.3f}"]
            table.append([*row, "-" if repeat is None else f"{repeat:,}"])
        return table

    def _samples_at(self, start: int | str) -> int:
        """Convert where a stage begins to samples."""
        if not isinstance(start, str):
            return checked_int("from_sample", start)
        tokens, unit = _parse(start)
        if not (0 <= tokens < float("inf") and unit == "tokens"):
            raise ValueError(f'from_sample must be a number of samples, or "3e9 tokens", not {start!r}')
        return int(tokens) // next(iter(self.datasets.values())).seq_len

    def _limit_epochs(self, max_epochs: Mapping[str, float], num_samples: int | None) -> None:
        """Keep the limits, and check that no member passes its own."""
        if max_epochs and num_samples is None:
            raise ValueError("max_epochs needs num_samples, the length of the run")
        if unknown := sorted(max_epochs.keys() - self.datasets.keys()):
            raise ValueError(f"max_epochs names {unknown}, which are not members: {sorted(self.datasets)}")
        length = checked_int("num_samples", num_samples or 0)
        self.max_epochs, self.num_samples = {}, num_samples and length
        for name, limit in max_epochs.items():
            most = self.max_epochs[name] = _number(limit)
            if not 0 < most <= _MAX_EPOCHS:
                raise ValueError(f"max_epochs of {name!r} must be in (0, 1e6], not {limit!r}")
            last = math.floor(most * len(self.datasets[name]) + 1e-6)  # 1/3 of 3 samples is a sample
            passed = self._sample_of(name, last, length)
            if passed is not None:
                raise ValueError(
                    f"member {name!r} would pass {most:g} epochs at sample {passed:,} of {length:,}: "
                    "lower its weight, or raise max_epochs"
                )


def _shares_of(datasets: Mapping[str, SplitSamples], weights: Mapping[str, Weight]) -> list[float]:
    """Convert the weights of a stage to shares of samples, by member."""
    parsed = {name: _parse(weights[name]) for name in datasets}
    for name, (number, unit) in parsed.items():
        if not (0 <= number < float("inf") and unit in _UNITS):
            raise ValueError(
                f'the weight of {name!r} must be a finite number, at least 0, or as "2e9 tokens" or "2.5 epochs", not '
                f"{weights[name]!r}"
            )
        if number and not len(datasets[name]):
            raise ValueError(f"{weights[name]} of {name!r}, which is empty: {datasets[name].why_empty()}")
    if not any(number for number, _ in parsed.values()):
        raise ValueError(f"the weights of {', '.join(datasets)} are all 0: give one of them a weight")
    if len({unit for number, unit in parsed.values() if number}) > 1:
        raise ValueError(f"the weights of a stage must have one unit, not {dict(weights)}")
    shares = {name: number * _samples_of(unit, datasets[name]) for name, (number, unit) in parsed.items()}
    least = _LEAST_SHARE * sum(shares.values())
    for name, share in shares.items():
        if 0 < share < least:
            raise ValueError(f"the weight of {name!r}, {weights[name]!r}, is below 1e-12 of the sum: raise it or use 0")
    return [*shares.values()]


def _samples_of(unit: str, data: SplitSamples) -> float:
    return float(len(data)) if unit == "epochs" else 1 / (data.mean_tokens or 1) if unit == "tokens" else 1.0


def _parse(weight: Weight) -> tuple[float, str]:
    """Split a weight into its number, NaN if it has none, and its unit, "" for a share."""
    number, _, unit = weight.partition(" ") if isinstance(weight, str) else (weight, "", "")
    return _number(number), unit if unit or not isinstance(weight, str) else "no unit"


def _number(value: object) -> float:
    """Convert a number of any library, or text; NaN for what is none."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _check_alike(datasets: Mapping[str, SplitSamples]) -> None:
    for name, data in datasets.items():
        if not (isinstance(name, str) and isinstance(data, SplitSamples)):
            raise TypeError(f"a member of a mixture must be a TokenDataset with a name, not {name!r}: {data!r}")
    first_name, first = next(iter(datasets.items()))
    mine = first.shards.manifest.tokenizer
    for name, data in datasets.items():
        theirs = data.shards.manifest.tokenizer
        if mine.fingerprint != theirs.fingerprint:
            a, b = (f"{described_tokenizer(fields_of(e))}, fingerprint {e.fingerprint[:8]}..." for e in (mine, theirs))
            differ = _DIFFER.format("tokenizer", first_name, a, name, b)
            raise ValueError(f"{differ}; build one of them with the tokenizer of the other")
    if all(data.packing == first.packing and data.format == first.format for data in datasets.values()):
        return
    for option in _SHARED_OPTIONS:
        of_data = attrgetter(option if option == "packing" else f"format.{option}")
        found = [(name, of_data(data)) for name, data in datasets.items()]
        if option == "learn":  # members without conversations are learned whole
            found = [each for each in found if each[1] is not None]
        for name, value in found:
            if value != found[0][1]:
                raise ValueError(_DIFFER.format(option, *found[0], name, value))


def open_source(
    store: str | Mapping[str, str], state: object, options: DatasetOptions
) -> tuple[TokenDataset | Mixture, OrderOptions]:
    """Open the dataset or mixture that a state names.

    Args:
        store: the store of the dataset; for a mixture, one store or {member: store}.
        state: the state of a loader.
        options: those of TokenDataset that the state does not name.

    Returns:
        The dataset or mixture, and the order, seed and lanes for its loader.
    """
    decoded = decode_state(state)
    stream = decode_stream(decoded["stream"])
    if isinstance(stream, DatasetFingerprint):
        if not isinstance(store, str):
            raise TokenloomError("the state is of a dataset: pass its store as a text, not one for each member")
        order: OrderOptions = {"order": stream.order, "seed": stream.seed, "lanes": stream.lanes}
        return _open_dataset(store, stream, options), order
    stores = dict.fromkeys(stream.names, store) if isinstance(store, str) else dict(store)
    if missing := [name for name in stream.names if name not in stores]:
        raise TokenloomError(f"no store of the members {', '.join(missing)}: pass one store, or {{member: store}}")
    from concurrent.futures import ThreadPoolExecutor  # a member of a remote store waits for several requests

    with ThreadPoolExecutor(_NUM_OPENED, "tokenloom-open") as threads:
        opened = threads.map(lambda name: _open_dataset(stores[name], stream.members[name], options), stream.names)
        members = dict(zip(stream.names, opened, strict=True))
    mixture = Mixture._of_stages(members, stream.weights, decoded["samples"])
    mixture._limit_epochs(stream.max_epochs or {}, stream.num_samples)
    first = stream.members[stream.names[0]]
    return mixture, {"order": first.order, "seed": first.seed, "lanes": stream.lanes}


def _open_dataset(store: str, stream: DatasetFingerprint, options: DatasetOptions) -> TokenDataset:
    named: DatasetOptions = {
        "packing": stream.packing,
        "labels": stream.labels,
        "mask_documents": stream.mask_documents,
        "part": stream.part,
    }
    if stream.learn is not None:
        named["learn"] = stream.learn
    reference = f"{store}/{stream.dataset}@{stream.version}"
    data = TokenDataset(reference, stream.split, stream.seq_len, **(named | options))
    return data if stream.source is None else data.of_source(stream.source)
