"""How the specs, tokenizers and inputs of two versions differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tokenloom.storage.formats.manifest import Manifest
from tokenloom.storage.formats.records import fields_of
from tokenloom.storage.formats.version_files import InputEntry


@dataclass(frozen=True)
class Change:
    """A difference: `kind` is "spec", "tokenizer" or "input"; None on the side that does not have the key.

    The manifest leaves defaults out of the spec, so None there means the default.
    """

    kind: str
    key: str
    old: object
    new: object


def changes(a: Manifest, b: Manifest, inputs_a: Sequence[InputEntry], inputs_b: Sequence[InputEntry]) -> list[Change]:
    """Return the differences from A to B, sorted by key: spec, then tokenizer, then inputs."""
    return [
        *_differences("spec", _spec(a), _spec(b)),
        *_differences("tokenizer", _tokenizer(a), _tokenizer(b)),
        *_differences("input", _fingerprints(inputs_a), _fingerprints(inputs_b)),
    ]


def _differences(kind: str, old: Mapping[str, object], new: Mapping[str, object]) -> list[Change]:
    keys = sorted({*old, *new})
    return [Change(kind, key, old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)]


def _spec(manifest: Manifest) -> dict[str, object]:
    spec = {key: value for key, value in manifest.spec.items() if key not in ("dataset", "tokenizer")}
    return dict(_flat("", spec))


def _tokenizer(manifest: Manifest) -> dict[str, object]:
    return {**dict(_flat("", manifest.tokenizer_definition)), **fields_of(manifest.tokenizer)}


def _fingerprints(inputs: Sequence[InputEntry]) -> dict[str, object]:
    return {f"{entry.source}: {entry.path}": entry.fingerprint for entry in inputs}


def _flat(prefix: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield (dotted key, value) of nested objects; a list of named items is their names, and each item by its name."""
    if isinstance(value, list) and value and all(isinstance(item, dict) and "name" in item for item in value):
        yield prefix, [item["name"] for item in value]
        value = {str(item["name"]): {key: part for key, part in item.items() if key != "name"} for item in value}
    if isinstance(value, dict) and value:
        for key, part in value.items():
            yield from _flat(f"{prefix}.{key}" if prefix else key, part)
    else:
        yield prefix, value
