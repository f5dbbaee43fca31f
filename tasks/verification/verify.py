"""Verify that every byte of a version is what was published, and that its files agree with each other.

One job is one shard with the files beside it, or one other listed file. A job never fails because of damage: it
reports it, so that one verification names all damaged files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.formats.canonical import read_signed
from tokenloom.storage.formats.manifest import BUILD, MANIFEST, QUARANTINE, Manifest, check_format, decode_manifest
from tokenloom.storage.formats.names import VERSION_PATTERN
from tokenloom.storage.formats.shard_entries import BLOCKS, DOCS, MASK
from tokenloom.storage.formats.version_files import InputEntry
from tokenloom.storage.stores.store import Store
from tokenloom.storage.verification.beside_checks import BlocksCheck, check_mask
from tokenloom.storage.verification.file_checks import (
    Damage,
    Taker,
    bare_message,
    check_file,
    check_quarantine,
    raise_unless_damage,
)
from tokenloom.storage.verification.shard_checks import ShardClaim, check_documents, check_tokens
from tokenloom.storage.verification.version_checks import (
    check_tags,
    inputs_problems,
    manifest_problems,
    shard_claims,
    unlisted_files,
)
from tokenloom.storage.versions import tags
from tokenloom.storage.versions.published import find_build_record, read_inputs, version_path
from tokenloom.storage.versions.references import begun_version, dataset_store, parse_reference
from tokenloom.tasks.running import progress

_REPORT_BYTES = 2**25


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
class ShardJob:
    """A shard and the files beside it to read."""

    store: Store
    claim: ShardClaim

    @property
    def label(self) -> str:
        """The name of the shard."""
        return self.claim.entry.name

    @property
    def weight(self) -> int:
        """The bytes of the shard."""
        return self.claim.entry.bytes

    def read(self) -> FileReport:
        """Read the files and compare them with the manifest and with each other."""
        claim, counter = self.claim, _ByteCounter()
        progress.report(progress.Working(f"reading {claim.path}"))
        blocks = BlocksCheck(self.store, claim, counter.take)
        header, problems = check_tokens(self.store, claim, _each(counter.take, blocks.take))
        counter.report(claim.entry.documents, claim.entry.tokens)
        progress.report(progress.Working(f"reading {claim.docs_path}"))
        found = {
            claim.path: problems,
            claim.docs_path: check_documents(self.store, claim, header, counter.take),
        }
        mask = claim.path_beside(MASK)
        if claim.entry.has_mask:
            progress.report(progress.Working(f"reading {mask}"))
            found[mask] = check_mask(self.store, claim, _each(counter.take, blocks.take_of_mask))
        found[claim.path_beside(BLOCKS)] = blocks.problems(header, mask_is_damaged=bool(found.get(mask)))
        for suffix in claim.entry.files.keys() - {DOCS, BLOCKS, MASK}:
            path, sha256 = claim.path_beside(suffix), claim.entry.files[suffix].sha256
            found[path] = check_file(self.store, path, sha256, counter.take)
        counter.report(0, 0)
        damages = [damage for path, problems in found.items() for damage in _damages(path, problems)]
        return FileReport(len(found), counter.num_bytes, damages)


@dataclass(frozen=True)
class FileJob:
    """Another listed file to read; `num_rows` is how many rows a quarantine must list."""

    store: Store
    path: str
    sha256: str
    num_rows: int | None

    @property
    def label(self) -> str:
        """The name of the file."""
        return self.path.rpartition("/")[2]

    @property
    def weight(self) -> int:
        """0: these files are small beside shards, and the manifest does not list their lengths."""
        return 0

    def read(self) -> FileReport:
        """Read the file and compare it with the manifest."""
        counter = _ByteCounter()
        progress.report(progress.Working(f"reading {self.path}"))
        if self.num_rows is None:
            problems = check_file(self.store, self.path, self.sha256, counter.take)
        else:
            problems = check_quarantine(self.store, self.path, self.sha256, self.num_rows, counter.take)
        counter.report(0, 0)
        return FileReport(1, counter.num_bytes, _damages(self.path, problems))


VerifyJob = ShardJob | FileJob


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
        version = self.manifest.version
        claims = shard_claims(self.manifest, None if self.inputs is None else len(self.inputs))
        shards = [ShardJob(self.store, claim) for claim in claims]
        counts = {QUARANTINE: self.manifest.rows.quarantined}
        others = [
            FileJob(self.store, version_path(version, name), sha256, counts.get(name))
            for name, sha256 in self.manifest.files.items()
        ]
        return [*shards, *others]


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


def verify_file(job: VerifyJob) -> FileReport:
    """Read the files of a job; read remote files again before they count as damaged, because a network changes bits."""
    found = job.read()
    return job.read() if found.damages and not job.store.is_local else found


def _each(*takers: Taker) -> Taker:
    """Return a taker that passes each block to all of these."""

    def take(position: int, block: memoryview) -> None:
        for taker in takers:
            taker(position, block)

    return take


def _damages(path: str, problems: list[str]) -> list[Damage]:
    return [Damage(path, "; ".join(problems))] if problems else []


class _ByteCounter:
    """Counts bytes and reports them."""

    def __init__(self) -> None:
        self.num_bytes = self._reported_bytes = 0

    def take(self, _: int, block: memoryview) -> None:
        """Count a block."""
        self.num_bytes += len(block)
        if self.num_bytes - self._reported_bytes >= _REPORT_BYTES:
            self.report(0, 0)

    def report(self, num_documents: int, num_tokens: int) -> None:
        """Report the bytes read since the last report."""
        new = self.num_bytes - self._reported_bytes
        self._reported_bytes = self.num_bytes
        progress.report(progress.Advanced(num_documents=num_documents, num_bytes=new, num_tokens=num_tokens, done=new))
