"""Export a version: plan it, write a unit, finish. flows/export_steps.py puts these in order.

A local export grows in NAME.tmp beside its destination, which is renamed at the end. On an object store each file
appears when it is complete. tokenloom-export.json is written last. A run that finds all files of a unit does not write
them again, so a killed export continues where it was; until its end, BEGUN identifies the export.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import xxhash

from tokenloom.errors import SpecError, StoreError
from tokenloom.storage.formats.arrays import token_dtype
from tokenloom.storage.formats.manifest import Manifest, given_options
from tokenloom.storage.formats.records import JsonObject, decode_record, fields_of, parse_json, sign
from tokenloom.storage.stores import Store, open_store
from tokenloom.storage.stores.local_files import sync_folder
from tokenloom.storage.stores.store import TMP
from tokenloom.storage.versions.published import check_split
from tokenloom.storage.versions.references import parse_reference, resolve
from tokenloom.tasks.exporting.base import (
    ExportFormat,
    ExportOptions,
    ExportUnit,
    FileRecord,
    VersionFacts,
    hashed,
    writing_hashed,
)
from tokenloom.tasks.exporting.documents import Documents, report_written
from tokenloom.tasks.exporting.streams import Datatrove, Llmc, Megatron, NanoGpt, Olmo
from tokenloom.tasks.exporting.tables import HuggingFace, LitData, Mds, Parquet
from tokenloom.tasks.running import progress

_ALL = (Megatron(), Olmo(), Llmc(), NanoGpt(), Datatrove(), Mds(), LitData(), HuggingFace(), Parquet())
#: the formats by name
FORMATS: dict[str, ExportFormat] = {each.name: each for each in _ALL}
SUMMARY, BEGUN = "tokenloom-export.json", "tokenloom-export.begun.json"
_SUMMARY_FORMAT = 1
_WORK = TMP.partition("/")[0]  # where a store keeps files that are being written


@dataclass(frozen=True, slots=True)
class _Summary:
    """The contents of tokenloom-export.json."""

    export: JsonObject
    files: dict[str, FileRecord]


@dataclass(frozen=True)
class Export:
    """An export that is planned.

    Attributes:
        identity: the contents of tokenloom-export.json besides the files.
        destination: where the complete export is.
        store: where its files are written: the destination itself, unless that is a folder.
    """

    reference: str
    facts: VersionFacts
    format: ExportFormat
    units: list[ExportUnit]
    losses: list[str]
    identity: JsonObject
    destination: Store
    store: Store


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
    form = FORMATS[name]
    form.refuse(facts)
    units = form.plan(facts)
    _check_names(units)
    empty = [f"{split} is empty: it gets no file" for split in chosen if split not in facts.splits]
    identity: JsonObject = {
        "export_format": _SUMMARY_FORMAT,
        "dataset": manifest.dataset,
        "version": manifest.version,
        "format": name,
        "options": given_options(fields_of(options) | {"splits": list(facts.splits)}),
    }
    destination = open_store(place.replace("{version}", manifest.version).rstrip("/") or place)
    writes_to = _written_to(destination, store)
    reference = f"{store.root}@{manifest.version}"
    return Export(reference, facts, form, units, form.losses(facts) + empty, identity, destination, writes_to)


def _facts(store: Store, manifest: Manifest, splits: list[str], options: ExportOptions) -> VersionFacts:
    documents = {split: Documents.of_split(store, manifest, split) for split in splits}
    documents = {split: each for split, each in documents.items() if each.num_documents}
    if not documents:
        raise SpecError(f"{store.root}@{manifest.version}: there are no documents in {', '.join(splits)}")
    token_bytes = token_dtype(manifest.tokenizer.vocab_size).itemsize
    has_masks = any(entry.has_mask for each in documents.values() for entry in each.shards)
    return VersionFacts(manifest.dataset, manifest.tokenizer, token_bytes, has_masks, documents, options)


def _written_to(destination: Store, dataset: Store) -> Store:
    """Return where the files of an export are written; raises StoreError for a place in the folder of the dataset."""
    root = destination.local("")
    folder = dataset.local("")
    place = str(root.resolve() if root else destination.root)
    if f"{place}/".startswith(f"{folder.resolve() if folder else dataset.root}/"):
        raise StoreError(f"{place}: in the folder of the dataset, where gc deletes files; give another destination")
    return destination if root is None else open_store(f"{root}.tmp")


def _check_names(units: list[ExportUnit]) -> None:
    """Raise SpecError if a format gives two splits one name (validation, val), or a split is called as our folder."""
    for name, count in Counter(name for unit in units for name in unit.files).items():
        if count > 1 or name.startswith(f"{_WORK}/"):
            raise SpecError(f"{name}: the names of splits clash; export them one by one with --split")


def begin(export: Export) -> dict[str, FileRecord] | None:
    """Begin an export, or go on with it; return its files if it is complete: only their lengths are compared.

    Raises SpecError or StoreError if something else is at the destination.
    """
    final, store, note = export.destination, export.store, sign(export.identity)
    if final.num_bytes(SUMMARY) is not None:
        return _complete(export)
    for place in (final, store):
        folder = place.local("")
        found = {*place.names("")} - {_WORK}  # a run that could not begin may leave it
        if (found or (folder and folder.is_file())) and BEGUN not in found:
            raise StoreError(f"{place.root}: it exists and is not this export; give another destination, or delete it")
    if store.num_bytes(BEGUN) is None:
        store.replace(BEGUN, note)
    elif store.read(BEGUN) != note:
        raise SpecError(f"{store.root}: it is another export that is not complete; delete it, or finish that export")
    else:
        store.remove_stale_temporaries()
    return None


def _complete(export: Export) -> dict[str, FileRecord]:
    final = export.destination
    place = export.destination.place(SUMMARY)
    found = decode_record(_Summary, parse_json(final.read(SUMMARY), place, is_signed=True), place)
    if found.export != export.identity:
        raise SpecError(f"{final.root}: another export is there, see {SUMMARY}; give another destination")
    for name, record in found.files.items():
        if final.num_bytes(name) != record.bytes:
            problem = "it is missing or was changed after the export"
            raise StoreError(f"{final.place(name)}: {problem}; delete {final.root} and export again")
    final.remove(BEGUN)  # a run may have been killed after it wrote its summary
    return found.files


def write_unit(
    store: Store, export_format: ExportFormat, facts: VersionFacts, unit: ExportUnit
) -> dict[str, FileRecord]:
    """Write the files of a unit to a store unless they are there; return their records."""
    if None not in map(store.num_bytes, unit.files):
        known = {name: hashed(store, name) for name in unit.files}
        report_written(unit.documents.num_tokens, unit.documents.num_documents)
        return known
    progress.report(progress.Working(f"writing {unit.files[0]}"))
    with ExitStack() as stack:
        files = [stack.enter_context(writing_hashed(store, name)) for name in unit.files]
        export_format.write(unit, facts, files)
    return {name: file.record for name, file in zip(unit.files, files, strict=True)}


def finish(export: Export, records: dict[str, FileRecord]) -> dict[str, FileRecord]:
    """Write the small files and the summary, and show the export; return the records of all files."""
    store = export.store
    final = export.destination
    for name, data in export.format.finish(export.facts, export.units, records).items():
        store.replace(name, data)
        records[name] = FileRecord(len(data), xxhash.xxh3_128_hexdigest(data))
    store.replace(SUMMARY, sign(_Summary(export.identity, records)))
    if (root := final.local("")) is not None:
        store.remove_files(list(store.files_below(_WORK)))
        store.remove_empty_folders(_WORK)
        try:
            os.rename(store.root, root)
            sync_folder(root.parent)
        except OSError as error:
            raise StoreError(f"{root}: {error.strerror}; what was exported is in {store.root}") from error
    final.remove(BEGUN)
    return records


def result_of(export: Export, records: dict[str, FileRecord], *, existed: bool) -> dict[str, Any]:
    """Return the JSON object of `tokenloom export --json`; `existed` says that the export was complete before."""
    documents = export.facts.splits.values()
    return {
        "reference": export.reference,
        "version": str(export.identity["version"]),
        "format": export.format.name,
        "destination": str(export.destination.root),
        "files": len(records),
        "bytes": sum(record.bytes for record in records.values()),
        "documents": sum(each.num_documents for each in documents),
        "tokens": sum(each.num_tokens for each in documents),
        "losses": export.losses,
        "existed": existed,
    }
