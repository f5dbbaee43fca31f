"""Candidates: complete versions whose gates failed, kept in work/ until they are published or collected.

`manifest.json` has the bytes that publication will give the version; `candidate.json` is written after it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenloom.errors import FormatError
from tokenloom.storage.formats.canonical import read_signed_record, sign_record
from tokenloom.storage.formats.manifest import MANIFEST, Manifest, encode_manifest, read_manifest
from tokenloom.storage.formats.names import VERSION_PATTERN
from tokenloom.storage.formats.version_files import BuildRecord
from tokenloom.storage.stores.store import Store
from tokenloom.storage.work.assignment import CANDIDATES, candidate_path
from tokenloom.storage.work.work_files import find_work_records, reading_work_file

_RECORD = "candidate.json"


@dataclass(frozen=True, slots=True)
class CandidateRecord:
    """What a build leaves of a version that it did not publish.

    `build` becomes its build.json; `build.gates` are those that the build evaluated. `checks` are the limits that the
    spec sets, by name. `tag` is the tag that names the version once it is published; `at` is ISO 8601 in UTC.
    """

    build: BuildRecord
    checks: dict[str, float]
    tag: str
    at: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate as it was read; `data` are the bytes of its manifest."""

    record: CandidateRecord
    manifest: Manifest
    data: bytes


def write_candidate(store: Store, manifest: Manifest, record: CandidateRecord) -> None:
    """Keep a version that is complete except for its manifest."""
    version = manifest.version
    store.replace(candidate_path(version, MANIFEST), encode_manifest(manifest))
    store.replace(candidate_path(version, _RECORD), sign_record(record))


def has_candidate(store: Store, version: str) -> bool:
    """Return whether a candidate of `version` is kept."""
    return store.exists(candidate_path(version, _RECORD))


def read_candidate(store: Store, version: str) -> Candidate:
    """Return the candidate of `version`; raises WorkError if it is missing or damaged."""
    path, manifest_path = candidate_path(version, _RECORD), candidate_path(version, MANIFEST)
    with reading_work_file(store, path):
        record = read_signed_record(store.read(path), store.place(path), CandidateRecord)
    with reading_work_file(store, manifest_path):
        data = store.read(manifest_path)
        manifest = read_manifest(data, store.place(manifest_path))
        if manifest.version != version:
            raise FormatError(f"it is the manifest of {manifest.version}")
    return Candidate(record, manifest, data)


def find_candidates(store: Store) -> dict[str, CandidateRecord]:
    """Return the records of all candidates, by version; damaged ones are left out."""
    versions = [name for name in store.names(CANDIDATES) if VERSION_PATTERN.match(name)]
    paths = {candidate_path(version, _RECORD): version for version in versions}
    found = find_work_records(store, list(paths), CandidateRecord)
    return {paths[path]: record for path, record in found.items()}


def remove_candidate(store: Store, version: str) -> None:
    """Forget the candidate of a version, which is published."""
    store.remove(candidate_path(version, _RECORD))
    store.remove(candidate_path(version, MANIFEST))
