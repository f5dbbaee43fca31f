"""The part of a version's spec that says which documents the version has, and in which order and split.

A store may hold a manifest that no build wrote: values are checked here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from tokenloom.storage.formats.keys import SEED_SPACE
from tokenloom.storage.formats.manifest import MANIFEST, Manifest
from tokenloom.storage.formats.records import Rule, decode_record
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import version_path


class SplitShare(NamedTuple):
    """A split, and its share of the documents."""

    name: str
    share: Annotated[float, Rule(lambda share: 0 <= share <= 1, "in [0, 1]")]


_Seed = Annotated[int, Rule(lambda seed: 0 <= seed < SEED_SPACE, "in [0, 2**56)")]
_Splits = Annotated[tuple[SplitShare, ...], Rule(lambda splits: "train" in dict(splits), "shares with that of train")]


@dataclass(frozen=True, slots=True)
class DocumentOptions:
    """Which documents are left out; `exclude` is the SHA-256 of a list of contents."""

    min_chars: int
    deduplicate: bool
    max_chars: int | None = None
    exclude: str | None = None
    transform: object = None
    without_target: str = "drop"


@dataclass(frozen=True, slots=True)
class VersionSpec:
    """What lookups, comparisons and moves of tags read of a spec; `limit` is that of a try-out."""

    seed: _Seed
    splits: _Splits
    documents: DocumentOptions
    limit: int | None = None


def version_spec(store: Store, manifest: Manifest) -> VersionSpec:
    """Return the spec in a version's manifest; raises FormatError for values that no build writes."""
    return decode_record(VersionSpec, manifest.spec, store.place(version_path(manifest.version, MANIFEST)), "spec")
