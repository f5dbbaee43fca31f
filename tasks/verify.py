"""Verify that every byte of a version is as it was published.

One job is one shard with the files beside it, or one other listed file. A job never fails because of damage: it
reports it, so that one verification names all damaged files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypedDict

from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.formats.manifest import (
    BUILD,
    FORMAT_VERSION,
    MANIFEST,
    VERSION_PATTERN,
    InputEntry,
    Manifest,
    read_manifest,
)
from tokenloom.storage.formats.records import parse_json
from tokenloom.storage.stores.store import Store
from tokenloom.storage.verification import (
    Damage,
    check_files,
    check_tags,
    collecting_damage,
    inputs_problems,
    manifest_problems,
    raise_unless_damage,
    unlisted_files,
)
from tokenloom.storage.versions import tags
from tokenloom.storage.versions.build_record import find_build_record
from tokenloom.storage.versions.published import read_inputs, version_path
from tokenloom.storage.versions.references import begun_version, dataset_store, parse_reference
from tokenloom.tasks.running import progress
from tokenloom.tasks.running.steps import Job


class DamagedFile(TypedDict):
    """A damaged file of a version, its problem, and the next step."""

    file: str
    what: str
    next_step: str


class VerificationResult(TypedDict):
    """The JSON object of `tokenloom verify --json`."""

    reference: str
    version: str | None
    files: int
    bytes: int
    documents_encoded_again: int
    damages: list[DamagedFile]
    warnings: list[str]


@dataclass(frozen=True)
class Report:
    """The counts of a job: files, bytes, documents; the damages that it found, and why it could not read more."""

    num_files: int = 0
    num_bytes: int = 0
    num_documents: int = 0  # encoded again
    damages: list[Damage] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class OpenedVersion:
    """A version to verify, as far as it is known before its large files are read.

    `version` is None if the tag is damaged, `manifest` is None if it can't be trusted.
    """

    reference: str
    store: Store
    version: str | None
    manifest: Manifest | None
    inputs: list[InputEntry] | None
    damages: list[Damage]
    warnings: list[str]

    def jobs(self) -> list[Job]:
        """Return the files to read, {name in the version: SHA-256}: each shard with the files beside it, then others.

        A job weighs as much as its shard; the other files are small, and the manifest does not list their lengths.
        """
        if self.manifest is None:
            return []
        shards = [
            Job(shard.name, {name: file["sha256"] for name, file in shard.listed.items()}, shard.bytes)
            for shard in self.manifest.shards
        ]
        return shards + [Job(name, {name: sha256}, 0) for name, sha256 in self.manifest.files.items()]


def open_version(reference: str) -> OpenedVersion:
    """Read a version's manifest and inputs, and the logs of its dataset.

    Args:
        reference: STORE/DATASET@TAG_OR_VERSION.

    Raises:
        StoreError: the dataset, tag or version does not exist, or the store can't be read.
        FormatError: the manifest is of a newer format, or needs what this release does not know.
    """
    parsed = parse_reference(reference)
    store = dataset_store(parsed.store, parsed.dataset)
    damages, warnings = check_tags(store)
    version: str | None = parsed.name
    if not VERSION_PATTERN.match(parsed.name):
        try:
            entry = tags.newest(store, parsed.name)
        except (FormatError, StoreError) as error:  # check_tags has reported it
            raise_unless_damage(store, error)
            version = None
        else:
            version = entry.version if entry else begun_version(store, parsed)
    manifest = _manifest(store, version, damages) if version else None
    inputs = None
    if version and manifest:
        inputs = _inputs(store, manifest, damages)
        if manifest.dataset != parsed.dataset:
            warnings.append(f"the version was built as dataset {manifest.dataset!r}")
        build = version_path(version, BUILD)
        if find_build_record(store, version) is None and store.exists(build):
            warnings.append(
                f"{build}: damaged, so it is unknown how the version was built; no token depends on it: restore or "
                "delete it"
            )
        warnings += [f"{path}: not listed in the manifest" for path in unlisted_files(store, manifest)]
    return OpenedVersion(f"{store.root}@{version or parsed.name}", store, version, manifest, inputs, damages, warnings)


def _manifest(store: Store, version: str, damages: list[Damage]) -> Manifest | None:
    """Return the manifest, or None if it can't be trusted; add its damages."""
    path = version_path(version, MANIFEST)
    place = store.place(path)
    if not store.exists(path):
        if any(damage.file == path for damage in damages):  # a tag names it
            return None
        raise StoreError(f"{store.root}: no version {version}; `tokenloom ls` lists the versions")
    value: Any = None
    with collecting_damage(store, path, damages):
        data = store.read(path)
        value = parse_json(data, place, is_signed=True)
    if value is None:
        return None
    if value.get("format_version") != FORMAT_VERSION or value.get("needs"):
        read_manifest(data, place)  # outside of a block: it raises that a newer release is needed, which is not damage
    trusted: Manifest | None = None
    with collecting_damage(store, path, damages):
        manifest = read_manifest(data, place, version)
        damages += [Damage(path, problem) for problem in manifest_problems(manifest)]
        trusted = manifest
    return trusted  # noqa: RET504  (None if the block found damage)


def _inputs(store: Store, manifest: Manifest, damages: list[Damage]) -> list[InputEntry] | None:
    """Return the version's inputs if they can be read; the job of a damaged file reports it."""
    try:
        inputs = read_inputs(store, manifest)
    except (FormatError, StoreError) as error:
        raise_unless_damage(store, error)
        return None
    path = version_path(manifest.version, MANIFEST)
    damages += [Damage(path, problem) for problem in inputs_problems(manifest, inputs)]
    return inputs


def verify_files(store: Store, version: str | None, digests: dict[str, str]) -> Report:
    """Read files of a version and compare them with their SHA-256 by name; runs in a worker.

    Remote files are read again before they count as damaged, because a network changes bits.
    """
    num_bytes = 0

    def count(num_read: int) -> None:
        nonlocal num_bytes
        num_bytes += num_read
        progress.report(progress.Advanced(num_bytes=num_read, done=num_read))

    assert version is not None  # it has a manifest
    progress.report(progress.Working(f"reading {next(iter(digests))}"))
    damages = check_files(store, version, digests, count)
    if damages and not store.is_local:
        damages = check_files(store, version, digests, lambda num_read: None)
    return Report(len(digests), num_bytes, damages=damages)
