"""How the specs, tokenizers and inputs of two versions differ."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from tokenloom.storage.formats.manifest import InputEntry, Manifest
from tokenloom.storage.formats.records import fields_of


@dataclass(frozen=True)
class Change:
    """A difference: `kind` is "spec", "source", "tokenizer" or "input"; None on the side that does not have the key.

    A source that only one side has is one change of kind "source"; options of a shared source are of kind "spec".
    """

    kind: str
    key: str
    old: object
    new: object


def changes(a: Manifest, b: Manifest, inputs_a: Sequence[InputEntry], inputs_b: Sequence[InputEntry]) -> list[Change]:
    """Return the differences from A to B, sorted by key: spec, then sources, tokenizer and inputs."""
    sources_a, sources_b = _sources(a), _sources(b)
    shared = sources_a.keys() & sources_b.keys()
    added, removed = ({n: v for n, v in sources.items() if n not in shared} for sources in (sources_b, sources_a))
    return [
        *_differences("spec", _spec(a, shared), _spec(b, shared)),
        *_differences("source", removed, added),
        *_differences("tokenizer", _tokenizer(a), _tokenizer(b)),
        *_differences("input", _fingerprints(inputs_a), _fingerprints(inputs_b)),
    ]


def _differences(kind: str, old: Mapping[str, object], new: Mapping[str, object]) -> list[Change]:
    keys = sorted({*old, *new})
    return [Change(kind, key, old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)]


def _spec(manifest: Manifest, shared: Collection[str]) -> dict[str, object]:
    """Return the spec by dotted key; of the sources, their names, and the options of those that both sides have."""
    spec = {key: value for key, value in manifest.spec.items() if key not in ("dataset", "sources", "tokenizer")}
    sources = _sources(manifest)
    options = [_flat(f"sources.{name}", sources[name]) for name in shared if sources[name]]
    return dict(chain(_flat("", spec | {"sources": list(sources)}), *options))


def _sources(manifest: Manifest) -> dict[str, object]:
    """Return the options of each source by name; a store may hold a manifest that no build wrote."""
    found = manifest.spec.get("sources")
    items = [item for item in found if isinstance(item, dict) and "name" in item] if isinstance(found, list) else []
    return {str(item["name"]): {key: value for key, value in item.items() if key != "name"} for item in items}


def _tokenizer(manifest: Manifest) -> dict[str, object]:
    return {**dict(_flat("", manifest.tokenizer_definition)), **fields_of(manifest.tokenizer)}


def _fingerprints(inputs: Sequence[InputEntry]) -> dict[str, object]:
    return {f"{entry.source}: {entry.path}": entry.fingerprint for entry in inputs}


def _flat(prefix: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield (dotted key, value) of nested objects."""
    if isinstance(value, dict) and value:
        for key, part in value.items():
            yield from _flat(f"{prefix}.{key}" if prefix else key, part)
    else:
        yield prefix, value
