"""Verify that every byte of a version is what was published.

One job is one shard with the files beside it, or one other listed file. A job never fails because of damage: it
reports it, so that one verification names all damaged files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.formats.manifest import BUILD, MANIFEST, Manifest, check_format, decode_manifest
from tokenloom.storage.formats.names import VERSION_PATTERN
from tokenloom.storage.formats.records import read_signed
from tokenloom.storage.formats.version_files import InputEntry
from tokenloom.storage.stores.store import Store
from tokenloom.storage.verification.file_checks import Damage, bare_message, check_files, raise_unless_damage
from tokenloom.storage.verification.version_checks import (
    check_tags,
    inputs_problems,
    manifest_problems,
    unlisted_files,
)
from tokenloom.storage.versions import tags
from tokenloom.storage.versions.published import find_build_record, read_inputs, version_path
from tokenloom.storage.versions.references import begun_version, dataset_store, parse_reference
from tokenloom.tasks.running import progress


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
class FileReport:
    """What a job found."""

    num_files: int
    num_bytes: int
    damages: list[Damage]


@dataclass(frozen=True)
class VerifyJob:
    """Listed files to read: a shard with the files beside it, or another one.

    Attributes:
        store: the dataset's folder.
        version: of the files.
        digests: SHA-256 by name in the version, the shard first.
        weight: the bytes of the shard; 0 for other files, which are small and whose lengths the manifest does not list.
    """

    store: Store
    version: str
    digests: dict[str, str]
    weight: int


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

    def jobs(self) -> list[VerifyJob]:
        """Return the files to read, the shards first."""
        if self.manifest is None:
            return []
        shards = [({name: file.sha256 for name, file in e.listed.items()}, e.bytes) for e in self.manifest.shards]
        others = [({name: sha256}, 0) for name, sha256 in self.manifest.files.items()]
        return [VerifyJob(self.store, self.manifest.version, *each) for each in [*shards, *others]]


def open_version(reference: str) -> OpenedVersion:
    """Read a version's manifest and inputs, and the logs of its dataset.

    Args:
        reference: STORE/DATASET@TAG_OR_VERSION.

    Raises:
        StoreError: the dataset, tag or version does not exist, or the store can't be read.
        FormatError: the manifest is of a newer format.
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
    if manifest is not None:
        inputs = _inputs(store, manifest, damages)
        if manifest.dataset != parsed.dataset:
            warnings.append(f"the version was built as dataset {manifest.dataset!r}")
        warnings += _doubts(store, manifest)
        warnings += [f"{path}: not listed in the manifest" for path in unlisted_files(store, manifest)]
    return OpenedVersion(f"{store.root}@{version or parsed.name}", store, version, manifest, inputs, damages, warnings)


def _doubts(store: Store, manifest: Manifest) -> list[str]:
    """Return a warning for a damaged build.json; no token depends on it."""
    path = version_path(manifest.version, BUILD)
    if find_build_record(store, manifest.version) is not None or not store.exists(path):
        return []
    return [
        f"{path}: damaged, so it is unknown how the version was built; no token depends on it: restore or delete it"
    ]


def _manifest(store: Store, version: str, damages: list[Damage]) -> Manifest | None:
    """Return the manifest, or None if it can't be trusted; add its damages."""
    path = version_path(version, MANIFEST)
    place = store.place(path)
    try:
        value = read_signed(store.read(path), place)
    except FileNotFoundError as error:
        if any(damage.file == path for damage in damages):  # a tag names it
            return None
        raise StoreError(f"{store.root}: no version {version}; `tokenloom ls` lists the versions") from error
    except (FormatError, StoreError) as error:
        raise_unless_damage(store, error)
        damages.append(Damage(path, bare_message(error, place)))
        return None
    check_format(value, place)  # outside of the `try`: a newer format is not damage
    try:
        manifest = decode_manifest(value, place)
        if manifest.version != version:
            raise FormatError(f"it is the manifest of {manifest.version}")
    except FormatError as error:
        damages.append(Damage(path, bare_message(error, place)))
        return None
    damages += [Damage(path, problem) for problem in manifest_problems(manifest)]
    return manifest


def _inputs(store: Store, manifest: Manifest, damages: list[Damage]) -> list[InputEntry] | None:
    """Return the version's inputs if they can be read; the job of a damaged file reports it."""
    try:
        inputs = read_inputs(store, manifest)
    except FormatError:
        return None
    except StoreError as error:
        raise_unless_damage(store, error)
        return None
    path = version_path(manifest.version, MANIFEST)
    damages += [Damage(path, problem) for problem in inputs_problems(manifest, inputs)]
    return inputs


def verify_files(job: VerifyJob) -> FileReport:
    """Read the files of a job; read remote files again before they count as damaged, because a network changes bits."""
    num_bytes = 0

    def count(num_read: int) -> None:
        nonlocal num_bytes
        num_bytes += num_read
        progress.report(progress.Advanced(num_bytes=num_read, done=num_read))

    progress.report(progress.Working(f"reading {next(iter(job.digests))}"))
    damages = check_files(job.store, job.version, job.digests, count)
    if damages and not job.store.is_local:
        damages = check_files(job.store, job.version, job.digests, lambda num_read: None)
    return FileReport(len(job.digests), num_bytes, damages)
