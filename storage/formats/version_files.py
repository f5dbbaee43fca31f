"""The small files of a version beside its manifest: inputs.json says what went in, build.json how it was built."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from tokenloom.errors import FormatError, message_of
from tokenloom.storage.formats.canonical import canonical_json
from tokenloom.storage.formats.records import JsonObject, Mismatch, Record, decode_record
from tokenloom.storage.formats.shard_entries import MAX_COUNT
from tokenloom.storage.formats.statistics import DocumentStatistics, EncodedCounts


@dataclass(frozen=True, slots=True)
class InputEntry:
    """An input file; `path` is relative to the root of its source."""

    source: str
    path: str
    fingerprint: str
    bytes: int


@dataclass(frozen=True, slots=True)
class _Inputs:
    inputs: list[InputEntry]


@dataclass(frozen=True, slots=True)
class EncoderUse:
    """How many partitions a fast encoder encoded, and how many bytes of their text the reference encoded too."""

    partitions: int
    compared: int


@dataclass(frozen=True, slots=True)
class GateResult:
    """What a gate of the spec's `checks` expected and found, as text: ">= 1,000" and "998"."""

    name: str
    expected: str
    found: str
    passed: bool


@dataclass(frozen=True, slots=True)
class BuildRecord:
    """How a version was built; nothing that decides its bytes.

    `spec` is the whole spec with its secrets redacted, `inputs` are URLs, `seconds` are by step, `measured` is what the
    checks before publishing found, `encoders` are the fast encoders, by name and version. `statistics` are by split,
    `encoded` by source; `gates` are those that the spec sets, and `forced` is why the version was published although
    some failed, None if it was not. `at` (ISO 8601 in UTC) and `by` say when and by whom it was published. Earlier
    releases did not write these six.
    """

    spec: JsonObject
    inputs: list[str]
    seconds: dict[str, float]
    measured: dict[str, int]
    host: str
    python: str
    libraries: dict[str, str]
    encoders: dict[str, EncoderUse] | None = None
    statistics: dict[str, DocumentStatistics] | None = None
    encoded: dict[str, EncodedCounts] | None = None
    gates: list[GateResult] | None = None
    forced: str | None = None
    at: str | None = None
    by: str | None = None


def encode_inputs(inputs: Sequence[InputEntry]) -> bytes:
    """Return the bytes of inputs.json."""
    return canonical_json(_Inputs(list(inputs)))


def decode_inputs(data: bytes, place: str) -> list[InputEntry]:
    """Return the inputs in the bytes of inputs.json; raises FormatError if they are damaged."""
    inputs = _decode(_Inputs, data, place).inputs
    for entry in inputs:
        if not 0 <= entry.bytes <= MAX_COUNT:
            raise FormatError(f"{place}: inputs[].bytes must be a count in [0, 2**63); restore it")
    return inputs


def encode_build(record: BuildRecord) -> bytes:
    """Return the bytes of build.json."""
    return canonical_json(record)


def decode_build(data: bytes, place: str) -> BuildRecord:
    """Return the record in the bytes of build.json; raises FormatError if they are damaged."""
    return _decode(BuildRecord, data, place)


def _decode(kind: type[Record], data: bytes, place: str) -> Record:
    try:
        return decode_record(kind, json.loads(data))
    except Mismatch as error:
        raise FormatError(f"{place}: {message_of(error)}; restore it") from error
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{place}: it does not hold valid JSON; restore it") from error
