"""The state of a loader: the fingerprint of its stream, and the number of samples taken, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import TypedDict, TypeGuard, cast, get_args, get_origin, get_type_hints

from tokenloom.errors import TokenloomError

STATE_VERSION = 1
_VERSION, _STREAM, _SAMPLES = "tokenloom_state", "stream", "samples"


class SamplesFingerprint(TypedDict):
    """Everything that determines the samples of a split, their indices, and what a model learns from them."""

    dataset: str
    version: str
    split: str
    seq_len: int
    packing: str
    labels: str
    mask_documents: bool


class DatasetFingerprint(SamplesFingerprint):
    """Everything that determines the sample at a position of the stream of a dataset."""

    order: str
    order_version: int
    lanes: int | None  # None unless the order is "block"
    seed: int


class MixtureFingerprint(TypedDict):
    """Everything that determines the sample at a position of the stream of a mixture."""

    members: dict[str, DatasetFingerprint]
    names: list[str]  # of the members, in order
    weights: list[list[int | list[int]]]  # [from_sample, weights] of each stage
    lanes: int | None  # as given for all members


class LoaderState(TypedDict):
    """Where a loader is."""

    tokenloom_state: int
    stream: DatasetFingerprint | MixtureFingerprint
    samples: int  # taken by all ranks together


def _field_types(kind: type) -> dict[str, tuple[type, ...]]:
    """Return the types that the JSON of each field of a TypedDict may have, in the order of the fields."""
    return {name: _json_types(hint) for name, hint in get_type_hints(kind).items()}


def _json_types(hint: object) -> tuple[type, ...]:
    """Return the types of a value's JSON: `list[str]` -> (list,), `int | None` -> (int, NoneType)."""
    if isinstance(hint, UnionType):
        return get_args(hint)
    return (get_origin(hint) or cast(type, hint),)


_FIELDS = _field_types(DatasetFingerprint)
_MIXTURE_FIELDS = _field_types(MixtureFingerprint)


def make_state(fingerprint: DatasetFingerprint | MixtureFingerprint, samples: int) -> LoaderState:
    """Return the state of a stream of which all ranks together have taken `samples` samples."""
    return {"tokenloom_state": STATE_VERSION, "stream": fingerprint, "samples": samples}


def is_mixture(stream: DatasetFingerprint | MixtureFingerprint) -> TypeGuard[MixtureFingerprint]:
    """Return whether a fingerprint is that of a mixture."""
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
    _check_stream(stream)
    return cast(LoaderState, state)


def _check_stream(stream: dict[str, object]) -> None:
    if "members" not in stream:
        return _check_fields(stream, _FIELDS, _STREAM)
    _check_fields(stream, _MIXTURE_FIELDS, _STREAM)
    members, names = stream["members"], stream["names"]
    assert isinstance(members, dict) and isinstance(names, list)  # just checked
    if not names or sorted(map(repr, members)) != sorted(map(repr, names)):
        raise TokenloomError(f"not a loader state: 'names' of its {_STREAM!r} must be those of its 'members'")
    weights = stream["weights"]
    assert isinstance(weights, list)  # just checked
    if not weights or not all(_is_stage(stage, len(names)) for stage in weights):
        raise TokenloomError(
            f"not a loader state: 'weights' of its {_STREAM!r} must be a list of [from_sample, weights of all members]"
        )
    for name, member in members.items():
        _check_fields(member, _FIELDS, f"{_STREAM}.members.{name}")
    return None


def _is_stage(stage: object, num_members: int) -> bool:
    if not isinstance(stage, list) or len(stage) != 2 or not isinstance(stage[1], list):
        return False
    return len(stage[1]) == num_members and all(type(number) is int for number in (stage[0], *stage[1]))


def _check_fields(record: object, fields: Mapping[str, tuple[type, ...]], place: str) -> None:
    if not isinstance(record, dict):
        raise TokenloomError(f"not a loader state: its {place!r} must be an object, not {record!r}")
    for name, types in fields.items():
        if name not in record:
            raise TokenloomError(f"not a loader state: its {place!r} has no {name!r}")
        if type(record[name]) not in types:
            names = " or ".join("null" if each is type(None) else each.__name__ for each in types)
            raise TokenloomError(f"not a loader state: {name!r} of its {place!r} must be {names}, not {record[name]!r}")


def check_state(state: object, fingerprint: DatasetFingerprint | MixtureFingerprint) -> int:
    """Return the number of samples taken; raise TokenloomError if the state is not of a stream with `fingerprint`."""
    decoded = decode_state(state)
    if differences := _differences(decoded["stream"], fingerprint):
        raise TokenloomError("the state belongs to a different stream: " + "; ".join(differences))
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
