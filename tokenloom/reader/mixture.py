"""Mixture: several datasets by weight; and the dataset or mixture that the state of a loader names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokenloom.reader.arguments import checked_int
from tokenloom.reader.dataset import DatasetOptions, TokenDataset
from tokenloom.reader.notebook import html_table
from tokenloom.reader.order import Schedule
from tokenloom.reader.state import DatasetFingerprint, decode_state, decode_stream
from tokenloom.reader.streams import DatasetStream, MixtureStream, OrderOptions, describe_mixture
from tokenloom.storage.formats.manifest import TokenizerEntry
from tokenloom.storage.formats.records import fields_of
from tokenloom.wording import described_tokenizer


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
        members: Mapping[str, tuple[TokenDataset, float]],
        stages: Sequence[tuple[int, Mapping[str, float]]] = (),
    ) -> None:
        if not members:
            raise ValueError("a mixture must have at least one member")
        for name, member in members.items():
            if not (isinstance(name, str) and isinstance(member, tuple) and isinstance(member[0], TokenDataset)):
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
        return html_table("Mixture", describe_mixture(self.datasets, self.schedule))

    def stream(self, order: str, seed: int, lanes: int | None) -> MixtureStream:
        """See SampleSource; the order, seed and lanes are those of each member's own stream."""
        members = {name: DatasetStream(data, order, seed, lanes) for name, data in self.datasets.items()}
        return MixtureStream(members, self.schedule, lanes)


def _check_alike(datasets: Mapping[str, TokenDataset]) -> None:
    first_name, first = next(iter(datasets.items()))
    for name, data in datasets.items():
        mine, theirs = (each.files.manifest.tokenizer for each in (first, data))
        if mine.fingerprint != theirs.fingerprint:
            raise ValueError(
                f"members of a mixture must have the same tokenizer: {first_name!r} has {_described(mine)}, "
                f"{name!r} has {_described(theirs)}; build one of them with the tokenizer of the other"
            )
        for what, one, other in (
            ("seq_len", first.seq_len, data.seq_len),
            ("packing", first.packing, data.packing),
            ("labels", first.format.labels, data.format.labels),
            ("fields", first.format.fields, data.format.fields),
            ("cu_seqlens_length", first.format.cu_seqlens_length, data.format.cu_seqlens_length),
            ("mask_documents", first.format.mask_documents, data.format.mask_documents),
        ):
            if one != other:
                raise _differ(what, first_name, one, name, other)
    learned = [(name, data.format.learn) for name, data in datasets.items() if data.format.learn is not None]
    for name, learn in learned:  # members without conversations are learned whole
        if learn != learned[0][1]:
            raise _differ("learn", *learned[0], name, learn)


def _differ(what: str, first_name: str, first: object, name: str, other: object) -> ValueError:
    return ValueError(
        f"members of a mixture must have the same {what}: {first_name!r} has {first}, {name!r} has {other}"
    )


def _described(tokenizer: TokenizerEntry) -> str:
    return f"{described_tokenizer(fields_of(tokenizer))}, fingerprint {tokenizer.fingerprint[:8]}..."


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
    stream = decode_stream(decode_state(state)["stream"])
    if isinstance(stream, DatasetFingerprint):
        return _open_dataset(str(store), stream, options), _order_options(stream, stream.lanes)
    stores = {name: store if isinstance(store, str) else store[name] for name in stream.names}
    members = {name: _open_dataset(stores[name], stream.members[name], options) for name in stream.names}
    (_, first), *later = ((start, dict(zip(stream.names, weights, strict=True))) for start, weights in stream.weights)
    mixture = Mixture({name: (members[name], first[name]) for name in members}, later)
    return mixture, _order_options(stream.members[stream.names[0]], stream.lanes)


def _open_dataset(store: str, stream: DatasetFingerprint, options: DatasetOptions) -> TokenDataset:
    named: DatasetOptions = {
        "packing": stream.packing,
        "labels": stream.labels,
        "mask_documents": stream.mask_documents,
    }
    if stream.learn is not None:
        named["learn"] = stream.learn
    merged: DatasetOptions = {**named, **options}
    return TokenDataset(f"{store}/{stream.dataset}@{stream.version}", stream.split, stream.seq_len, **merged)


def _order_options(stream: DatasetFingerprint, lanes: int | None) -> OrderOptions:
    return {"order": stream.order, "seed": stream.seed, "lanes": lanes}
