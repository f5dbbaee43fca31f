"""The state of a loader: the fingerprint of its stream and one whole number, as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenloom.errors import TokenloomError
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.mixture import Mixture

STATE_VERSION = 1
_VERSION, _STREAM, _SAMPLES = "tokenloom_state", "stream", "samples"
_KEPT = ("packing", "labels", "mask_documents")  # options of a dataset that a state decides
_OF_DATASET = ("dataset", "version", "split", "seq_len", *_KEPT, "order", "seed", "lanes")
_OF_MIXTURE = ("names", "weights", "lanes")


def make_state(fingerprint: dict[str, Any], samples: int) -> dict[str, Any]:
    """Return the state of a stream of which all ranks together have taken `samples` samples."""
    return {_VERSION: STATE_VERSION, _STREAM: fingerprint, _SAMPLES: samples}


def check_state(state: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> int:
    """Return the samples taken; raises TokenloomError if the state is not one of a stream with this fingerprint."""
    theirs, samples = _parts(state)
    if theirs != fingerprint:
        raise TokenloomError(
            "the state is of another stream than this loader's: " + "; ".join(_differences(theirs, fingerprint))
        )
    return samples


def _parts(state: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    if not isinstance(state, Mapping):
        raise TokenloomError(f"no loader state: a {type(state).__name__}, not an object; JSON must be read first")
    if _VERSION not in state:
        raise TokenloomError(f"no loader state: it has no {_VERSION!r}")
    if state[_VERSION] != STATE_VERSION:
        raise TokenloomError(
            f"no loader state of version {STATE_VERSION}: {_VERSION} is {state.get(_VERSION)!r}; a newer one needs a "
            "newer tokenloom"
        )
    stream, samples = state.get(_STREAM), state.get(_SAMPLES)
    if not isinstance(stream, dict) or type(samples) is not int or not 0 <= samples < 2**62:
        raise TokenloomError(f"no loader state: it needs {_STREAM!r}, an object, and {_SAMPLES!r}, a number from 0")
    return stream, samples


def _differences(theirs: Mapping[str, Any], mine: Mapping[str, Any], path: str = "") -> list[str]:
    found = []
    for name in sorted({*theirs, *mine}):
        a, b = theirs.get(name), mine.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            found += _differences(a, b, f"{path}{name}.")
        elif a != b:
            found.append(f"{path}{name} is {a!r} in the state, {b!r} in the loader")
    return found


def open_source(
    store: str | Mapping[str, str], state: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[TokenDataset | Mixture, dict[str, Any]]:
    """Open what a state names.

    Args:
        store: where the dataset lies; for a mixture, one store or {member: store}.
        state: of a loader.
        options: of TokenDataset, beyond what the state names.

    Returns:
        The dataset or mixture, and {"order", "seed", "lanes"} for its loader.
    """
    stream, _ = _parts(state)
    members = stream.get("members")
    _check_names(stream, _OF_DATASET if members is None else _OF_MIXTURE)
    if members is None:
        return _open_dataset(str(store), stream, options), _choices(stream)
    for member in members.values():
        _check_names(member, _OF_DATASET)
    stages = stream["weights"]
    stores = {name: store if isinstance(store, str) else store[name] for name in members}
    opened = {name: _open_dataset(stores[name], member, options) for name, member in members.items()}
    weights = [dict(zip(stream["names"], values, strict=True)) for _, values in stages]
    later = [(start, weight) for (start, _), weight in zip(stages[1:], weights[1:], strict=True)]
    mixture = Mixture({name: (opened[name], weights[0][name]) for name in stream["names"]}, later)
    return mixture, _choices(next(iter(members.values()))) | {"lanes": stream["lanes"]}


def _check_names(stream: Mapping[str, Any], needed: Sequence[str]) -> None:
    if missing := [name for name in needed if name not in stream]:
        raise TokenloomError(f"no loader state: its {_STREAM!r} has no {missing[0]!r}")


def _open_dataset(store: str, stream: Mapping[str, Any], options: Mapping[str, Any]) -> TokenDataset:
    reference = f"{store}/{stream['dataset']}@{stream['version']}"
    kept = {name: stream[name] for name in _KEPT}
    return TokenDataset(reference, stream["split"], stream["seq_len"], **kept | dict(options))


def _choices(stream: Mapping[str, Any]) -> dict[str, Any]:
    return {"order": stream["order"], "seed": stream["seed"], "lanes": stream["lanes"]}
