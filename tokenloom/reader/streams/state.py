"""The state of a loader: the fingerprint of its stream, and the number of samples that all ranks have taken, as JSON.

Two streams are equal up to a position if every stage of weights that begins before it is equal, and every member with a
weight in one of them. So a state amends a mixture: what comes after its position is free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, NamedTuple, TypeAlias, TypedDict, cast

from tokenloom.errors import FormatError, TokenloomError
from tokenloom.reader.streams.schedule import TOTAL_WEIGHT
from tokenloom.storage.formats.records import Rule, decode_record

STATE_VERSION = 1
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
        for name in ("learn", "part", "source"):
            if stream[name] is None:
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
