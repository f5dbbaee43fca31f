"""The state of a loader: the fingerprint of its stream, and the number of samples taken, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, NamedTuple, TypeAlias, TypedDict, cast

from tokenloom.errors import FormatError, TokenloomError
from tokenloom.storage.formats.records import Rule, decode_record

STATE_VERSION = 1
_VERSION, _STREAM, _SAMPLES = "tokenloom_state", "stream", "samples"
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
    weights: list[int]  # of the members, in order


@dataclass(frozen=True, slots=True)
class MixtureFingerprint:
    """What determines the sample at a position of the stream of a mixture."""

    members: dict[str, DatasetFingerprint]
    names: list[str]  # of the members, in order
    weights: list[FingerprintStage]
    lanes: int | None  # as given for all members


Fingerprint: TypeAlias = DatasetFingerprint | MixtureFingerprint


class LoaderState(TypedDict):
    """Where a loader is."""

    tokenloom_state: int
    stream: Json
    samples: int  # taken by all ranks together


def make_state(fingerprint: Fingerprint, samples: int) -> LoaderState:
    """Return the state of a stream of which all ranks together have taken `samples` samples."""
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


def is_mixture(stream: Mapping[str, object]) -> bool:
    """Return whether the stream of a state is that of a mixture."""
    return "members" in stream


def decode_state(state: object) -> LoaderState:
    """Return `state` if it is the state of a loader; raise TokenloomError, which names the field, if it is not."""
    if not isinstance(state, Mapping):
        raise TokenloomError(
            f"not a loader state: a {type(state).__name__} instead of an object; decode the JSON text first"
        )
    if _VERSION not in state:
        raise TokenloomError(f"not a loader state: it has no {_VERSION!r}")
    if state[_VERSION] != STATE_VERSION:
        raise TokenloomError(
            f"not a loader state of version {STATE_VERSION}: {_VERSION} is {state[_VERSION]!r}; if it is newer, it "
            "needs a newer tokenloom"
        )
    stream, samples = state.get(_STREAM), state.get(_SAMPLES)
    if not isinstance(stream, dict) or type(samples) is not int or not 0 <= samples < 2**62:
        raise TokenloomError(
            f"not a loader state: {_STREAM!r} must be an object, and {_SAMPLES!r} an integer in [0, 2**62)"
        )
    decode_stream(stream)
    return cast(LoaderState, state)


def decode_stream(stream: Json) -> Fingerprint:
    """Return the fingerprint in the stream of a state; raise FormatError, which names the field, if it is not one."""
    if not is_mixture(stream):
        return decode_record(DatasetFingerprint, stream, "not a loader state", _STREAM)
    mixture = decode_record(MixtureFingerprint, stream, "not a loader state", _STREAM)
    if not mixture.names or sorted(mixture.members) != sorted(mixture.names):
        raise FormatError("not a loader state: stream.names must be those of its members")
    if not mixture.weights or any(len(stage.weights) != len(mixture.names) for stage in mixture.weights):
        raise FormatError("not a loader state: stream.weights must have a weight for each member in each stage")
    return mixture


def check_state(state: object, fingerprint: Fingerprint) -> int:
    """Return the number of samples taken; raise TokenloomError if the state is not of a stream with `fingerprint`."""
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
