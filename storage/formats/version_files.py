"""The small files of a version beside its manifest: inputs.json says what went in, build.json how it was built."""

from __future__ import annotations

from dataclasses import dataclass

from tokenloom.storage.formats.records import Count, JsonObject, decode_record, parse_json
from tokenloom.storage.formats.statistics import DocumentStatistics, EncodedCounts


@dataclass(frozen=True, slots=True)
class InputEntry:
    """An input file; `path` is relative to the root of its source."""

    source: str
    path: str
    fingerprint: str
    bytes: Count


@dataclass(frozen=True, slots=True)
class Inputs:
    """The content of inputs.json."""

    inputs: list[InputEntry]


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
    `encoded` by source; `gates` are those that the spec sets. `at` (ISO 8601 in UTC) and `by` say when and by whom it
    was published.
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


def decode_build(data: bytes, place: str) -> BuildRecord:
    """Return the record in the bytes of build.json; raises FormatError if they are damaged."""
    return decode_record(BuildRecord, parse_json(data, place), place)
