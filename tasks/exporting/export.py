"""Export a version: what to write, one unit of it, and its end. flows/export_steps.py puts these in order.

A unit is written at once: its files first, then its record. A run that finds a record whose files are there with the
length and checksum that it says does not write them again, so a killed export goes on where it was.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypedDict

import xxhash

from tokenloom.errors import FormatError, SpecError, StoreError, message_of
from tokenloom.storage.formats.arrays import token_dtype
from tokenloom.storage.formats.canonical import canonical_json, read_signed_record, sign, sign_record
from tokenloom.storage.formats.classes import learned_classes, parse_policy
from tokenloom.storage.formats.manifest import Manifest, given_options
from tokenloom.storage.formats.records import JsonObject, fields_of
from tokenloom.storage.stores.local_files import syncing
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import check_split
from tokenloom.storage.versions.references import parse_reference, resolve
from tokenloom.tasks.exporting.destination import EXPORT, SUMMARY, WORK, Destination
from tokenloom.tasks.exporting.documents import Documents, report_written
from tokenloom.tasks.exporting.formats import FORMATS
from tokenloom.tasks.exporting.formats.base import ExportFormat, ExportOptions, ExportUnit, VersionFacts
from tokenloom.tasks.exporting.hashed_file import FileRecord, HashedFile, read_record
from tokenloom.tasks.running import progress

_SUMMARY_FORMAT = 1


class ExportResult(TypedDict):
    """The JSON object of `tokenloom export --json`; `existed` says that the export was complete before."""

    reference: str
    version: str
    format: str
    destination: str
    files: int
    bytes: int
    documents: int
    tokens: int
    losses: list[str]
    existed: bool


@dataclass(frozen=True, slots=True)
class _UnitRecord:
    """The files of a unit that is complete, by name."""

    files: dict[str, FileRecord]


@dataclass(frozen=True, slots=True)
class _Summary:
    """What tokenloom-export.json says."""

    export: JsonObject
    files: dict[str, FileRecord]


@dataclass(frozen=True)
class UnitJob:
    """A unit to write, and where its record goes."""

    store: Store
    facts: VersionFacts
    format: str
    unit: ExportUnit
    record: str


@dataclass(frozen=True)
class Export:
    """An export that is planned; `identity` is what tokenloom-export.json says of it besides its files."""

    reference: str
    facts: VersionFacts
    format: ExportFormat
    units: list[ExportUnit]
    losses: list[str]
    identity: JsonObject
    destination: Destination

    def jobs(self) -> list[UnitJob]:
        """Return a job for each unit, which carries no more of the version than the unit needs."""
        facts = VersionFacts(**vars(self.facts) | {"splits": {}})
        return [
            UnitJob(self.destination.store, facts, self.format.name, unit, f"{WORK}/units/{i:06}.json")
            for i, unit in enumerate(self.units)
        ]


def open_export(reference: str, name: str, place: str, options: ExportOptions) -> Export:
    """Plan an export; writes nothing.

    Args:
        reference: STORE/DATASET@TAG_OR_VERSION.
        name: of the format.
        place: the destination, a local path or a URL; {version} in it becomes the version.
        options: no splits mean all that have documents.

    Raises:
        SpecError: the version does not fit into the format, or an option is wrong.
        StoreError: the version or split does not exist.
        FormatError: a file of the version is damaged.
    """
    if name not in FORMATS:
        raise SpecError(f"{name!r} is not a format of exports; there are: {', '.join(FORMATS)}")
    store, manifest = resolve(parse_reference(reference))
    for split in options.splits:
        check_split(reference, manifest, split)
    chosen = list(dict.fromkeys(options.splits)) or list(manifest.splits)
    facts = _facts(store, manifest, chosen, options)
    _check_options(facts, name)
    export_format = FORMATS[name]
    export_format.refuse(facts)
    empty = [f"{split} is empty: it gets no file" for split in chosen if split not in facts.splits]
    units = export_format.plan(facts)
    _check_names(units)
    destination = Destination(place.replace("{version}", manifest.version))
    destination.check_outside(store)
    return Export(
        reference=f"{store.root}@{manifest.version}",
        facts=facts,
        format=export_format,
        units=units,
        losses=export_format.losses(facts) + empty,
        identity=_identity(manifest, name, facts),
        destination=destination,
    )


def _identity(manifest: Manifest, name: str, facts: VersionFacts) -> JsonObject:
    identity = {
        "export_format": _SUMMARY_FORMAT,
        "dataset": manifest.dataset,
        "version": manifest.version,
        "format": name,
        "options": given_options(fields_of(facts.options) | {"splits": list(facts.splits)}),
    }
    found: JsonObject = json.loads(canonical_json(identity))
    return found


def _facts(store: Store, manifest: Manifest, splits: list[str], options: ExportOptions) -> VersionFacts:
    documents = {split: Documents.of_split(store, manifest, split) for split in splits}
    documents = {split: each for split, each in documents.items() if each.num_documents}
    if not documents:
        raise SpecError(f"{store.root}@{manifest.version}: there are no documents in {', '.join(splits)}")
    entries = [entry for each in documents.values() for entry in each.shards]
    vocab_size = manifest.tokenizer.vocab_size
    return VersionFacts(
        dataset=manifest.dataset,
        tokenizer=manifest.tokenizer,
        token_bytes=token_dtype(vocab_size).itemsize,
        has_masks=any(entry.has_mask for entry in entries),
        splits=documents,
        options=options,
    )


def _check_options(facts: VersionFacts, name: str) -> None:
    """Raise SpecError if an option has no meaning for this version and format."""
    options = facts.options
    if options.seq_len is not None and not FORMATS[name].takes_samples:
        names = [other.name for other in FORMATS.values() if other.takes_samples]
        raise SpecError(f"--unit sample: {name} is a stream of tokens, which its trainer cuts; use {', '.join(names)}")
    if options.learn is None:
        return
    if not facts.has_masks:
        raise SpecError("--learn: the version has no conversations, so every token is learned; leave it out")
    try:
        learned_classes(parse_policy(options.learn))
    except ValueError as error:
        raise SpecError(f"--{message_of(error)}") from error


def _check_names(units: list[ExportUnit]) -> None:
    """Raise SpecError if a format gives two splits one name (validation, val), or a split is called as our folder."""
    for name, count in Counter(name for unit in units for name in unit.files).items():
        if count > 1 or name.startswith(f"{WORK}/"):
            raise SpecError(f"{name}: the names of splits clash; export them one by one with --split")


def find_complete(export: Export) -> dict[str, FileRecord] | None:
    """Return the files of the same export if it is complete at its destination; raise an error if another is.

    Only the lengths of its files are compared.
    """
    final = export.destination.final
    try:
        data = final.read(SUMMARY)
    except FileNotFoundError:
        export.destination.check_free()
        return None
    try:
        found = read_signed_record(data, final.place(SUMMARY), _Summary)
    except FormatError as error:
        raise StoreError(f"{message_of(error)}; delete {final.root} and export again") from error
    if found.export != export.identity:
        raise SpecError(f"{final.root}: another export is there, see {SUMMARY}; give another destination")
    for name, record in found.files.items():
        if final.num_bytes(name) != record.bytes:
            raise StoreError(
                f"{final.place(name)}: it is missing or was changed after the export; delete {final.root} and export "
                "again"
            )
    if export.destination.store is final:
        export.destination.clear_work()
    return found.files


def begin(export: Export) -> None:
    """Note what is exported, or check that an unfinished export is this one, and delete its unfinished files."""
    store = export.destination.store
    note = sign(export.identity)
    try:
        found = store.read(EXPORT)
    except FileNotFoundError:
        store.replace(EXPORT, note)
        return
    if found != note:
        raise SpecError(f"{store.root}: it is another export that is not complete; delete it, or finish that export")
    export.destination.clear_unfinished()


def write_unit(job: UnitJob) -> dict[str, FileRecord]:
    """Write the files of a unit unless they are there; return their records."""
    if (known := _written(job)) is not None:
        report_written(job.unit.documents.num_tokens, job.unit.documents.num_documents)
        return known
    progress.report(progress.Working(f"writing {job.unit.files[0]}"))
    with ExitStack() as stack:
        files = [_opened(stack, job.store, name) for name in job.unit.files]
        FORMATS[job.format].write(job.unit, job.facts, files)
    records = {name: file.record for name, file in zip(job.unit.files, files, strict=True)}
    job.store.replace(job.record, sign_record(_UnitRecord(records)))
    return records


def _opened(stack: ExitStack, store: Store, name: str) -> HashedFile:
    file = stack.enter_context(store.writing(name))
    return HashedFile(file, stack.enter_context(syncing(file)) if store.is_local else None)


def _written(job: UnitJob) -> dict[str, FileRecord] | None:
    """Return the records of a unit whose files are there; of remote ones only the lengths are compared."""
    try:
        files = read_signed_record(job.store.read(job.record), job.record, _UnitRecord).files
    except (FileNotFoundError, FormatError):
        return None
    for name, record in files.items():
        if job.store.num_bytes(name) != record.bytes:
            return None
        if job.store.is_local and read_record(job.store, name) != record:
            return None
    return files if set(files) == set(job.unit.files) else None


def finish(export: Export, records: dict[str, FileRecord]) -> dict[str, FileRecord]:
    """Write the small files and the summary, and show the export; return the records of all files."""
    for name, data in export.format.finish(export.facts, export.units, records).items():
        export.destination.store.replace(name, data)
        records[name] = FileRecord(len(data), xxhash.xxh3_128_hexdigest(data))
    export.destination.publish(sign_record(_Summary(export.identity, records)))
    return records


def result_of(export: Export, records: dict[str, FileRecord], *, existed: bool) -> ExportResult:
    """Return what an export wrote, or found."""
    documents = export.facts.splits.values()
    return {
        "reference": export.reference,
        "version": str(export.identity["version"]),
        "format": export.format.name,
        "destination": str(export.destination.final.root),
        "files": len(records),
        "bytes": sum(record.bytes for record in records.values()),
        "documents": sum(each.num_documents for each in documents),
        "tokens": sum(each.num_tokens for each in documents),
        "losses": export.losses,
        "existed": existed,
    }
