"""How a version was built: the file build.json, and the part of the spec that decides its bytes, in its manifest."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple, cast

from tokenloom.errors import FormatError
from tokenloom.storage.formats.keys import SEED_SPACE
from tokenloom.storage.formats.manifest import BUILD, MANIFEST, Manifest
from tokenloom.storage.formats.records import JsonObject, Rule, decode_record, parse_json
from tokenloom.storage.formats.statistics import DocumentStatistics, EncodedCounts, MarkCounts
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import version_path


@dataclass(frozen=True, slots=True)
class EncoderUse:
    """How many partitions a fast encoder encoded, and how many bytes of their text the reference encoded too."""

    partitions: int
    compared: int


@dataclass(frozen=True, slots=True)
class GateResult:
    """The result of a gate of the spec's `checks`; `expected` and `found` are text: ">= 1,000" and "998".

    `compared` is False for a drift that there was nothing to measure from; it passes, and `found` says why.
    """

    name: str
    expected: str
    found: str
    passed: bool
    compared: bool = True


@dataclass(frozen=True, slots=True)
class BuildRecord:
    """How a version was built; nothing that decides its bytes.

    `spec` is the whole spec with its secrets redacted, `inputs` are URLs, `seconds` are by step, `measured` is what the
    checks before publishing found, `encoders` are the fast encoders, by name and version. `statistics` are by split,
    `encoded` and `marks` by source; `gates` are those that the spec sets. `at` (ISO 8601 in UTC) and `by` say when
    and by whom it was published.
    """

    spec: JsonObject
    inputs: list[str]
    seconds: dict[str, float]
    measured: dict[str, int]
    host: str
    python: str
    libraries: dict[str, str]
    encoders: dict[str, EncoderUse]
    statistics: dict[str, DocumentStatistics]
    encoded: dict[str, EncodedCounts]
    gates: list[GateResult]
    at: str
    by: str
    marks: dict[str, MarkCounts] = field(default_factory=dict, metadata={"absent": {}})


def decode_build(data: bytes, place: str) -> BuildRecord:
    """Return the record in the bytes of build.json; raises FormatError if they are damaged."""
    return decode_record(BuildRecord, parse_json(data, place), place)


def find_build_record(store: Store, version: str) -> BuildRecord | None:
    """Return the build.json of a version; None if it is missing or damaged."""
    path = version_path(version, BUILD)
    try:
        return decode_build(store.read_all([path])[0] or b"", path)
    except FormatError:  # no checksum covers it, and nothing depends on it
        return None


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
    marks: JsonObject | None = None

    @property
    def max_copies(self) -> int:
        """The largest number of copies that a document may have."""
        repeat = cast(dict[str, dict[str, float]], (self.marks or {}).get("repeat") or {})
        return math.ceil(max(repeat.get("times", {}).values(), default=1))


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
