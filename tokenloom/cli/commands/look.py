"""`tokenloom ls`, `inspect` and `report`: what a store has, and the figures of a version."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from tokenloom.cli.arguments import Argument, Ref, StoreOrDataset
from tokenloom.cli.output import Json, Output, Result
from tokenloom.errors import StoreError
from tokenloom.storage.formats.manifest import NAME_PATTERN
from tokenloom.storage.stores import Store, open_store
from tokenloom.storage.versions import tags
from tokenloom.storage.versions.build_record import find_build_record
from tokenloom.storage.versions.published import is_dataset, published_versions, read_inputs
from tokenloom.storage.versions.references import (
    dataset_store,
    names_version,
    parse_reference,
    resolve,
)
from tokenloom.wording import (
    counted,
    counted_rows,
    described_tokenizer,
    percent,
    print_status,
    printable_line,
    shortened,
    shown_bytes,
    shown_time,
)

_MAX_VERSIONS = 100  # in a table
_MAX_TEXT = 20  # characters of a name or of tags in a table


def ls(store: StoreOrDataset, *, out: Output) -> Result:
    """List the datasets of a store, or the versions of a dataset.

    Of more than 100 versions it shows the newest 100; --json lists all.

    Example:
        ls store/news
    """
    folder = open_store(store)
    names = set(folder.names(""))
    if not names and not folder.exists(""):
        raise StoreError(f"{store}: no such store or dataset; a build creates it")
    if names & {"versions", "tags"}:
        return _list_versions(folder, out)
    return _list_datasets(folder, sorted(filter(NAME_PATTERN.match, names)), out)


def _list_datasets(store: Store, names: list[str], out: Output) -> Result:
    datasets = list[Json]()
    for name in names:
        dataset = dataset_store(str(store.root), name)
        versions, latest = published_versions(dataset), tags.newest(dataset, tags.LATEST)
        if versions or latest:
            named = {"latest": latest and latest.version, "at": latest and latest.at}
            datasets.append({"dataset": name, "versions": len(versions), **named})
    rows = [[d["dataset"], d["versions"], d["latest"] or "-", shown_time(d["at"] or "-")] for d in datasets]
    if rows:
        out.table(["dataset", "versions", "latest", "since (UTC)"], rows)
    else:
        out.line(f"nothing has been published in {store.root} yet")
    return Result({"store": str(store.root), "datasets": datasets})


def _list_versions(store: Store, out: Output) -> Result:
    """List the newest versions, newest first, or all of them as JSON, and why manifests can't be read."""
    from tokenloom.tasks.report.catalogue import list_versions

    names = published_versions(store)
    shown = names if out.is_quiet else names[:_MAX_VERSIONS]
    versions = [
        {
            "version": name,
            "tags": version.tags,
            "tokens": version.manifest and version.manifest.num_tokens,
            "documents": version.manifest and version.manifest.num_documents,
            "bytes": version.manifest and version.manifest.shard_bytes,
            "damage": version.damage,
            "at": version.build and version.build.at,
            "by": version.build and version.build.by,
        }
        for name, version in list_versions(store, shown).items()
    ]
    header = ["version", "published (UTC)", "documents", "tokens", "size", "by", "tags"]
    out.table(header, [_cells(version) for version in versions])
    if len(names) > _MAX_VERSIONS:
        out.line(f"and {counted(len(names) - _MAX_VERSIONS, 'older version')}, which --json lists too")
    for version in versions:
        if version["damage"]:
            out.line(str(version["damage"]))
    return Result({"dataset": str(store.root).rpartition("/")[2], "versions": versions})


def _cells(version: Json) -> list[str | int]:
    counts: list[str | int] = ["unreadable"] * 3
    if version["damage"] is None:
        counts = [version["documents"], version["tokens"], shown_bytes(version["bytes"])]
    short = [shortened(printable_line(text), _MAX_TEXT) for text in (version["by"] or "-", ", ".join(version["tags"]))]
    return [version["version"], shown_time(version["at"] or "-"), *counts, *short]


def inspect(reference: Ref, *, out: Output) -> Result:
    """Show what a version contains.

    Example:
        inspect store/news@latest
    """
    from tokenloom.tasks.building.version_facts import VersionFacts  # late: `ls` does without its imports

    store, manifest = resolve(parse_reference(reference))
    inputs = read_inputs(store, manifest)
    build = find_build_record(store, manifest.version)
    facts = VersionFacts(store, manifest, build)
    out.line(facts.reference)
    out.line(f"  tokenizer  {described_tokenizer(facts.tokenizer)}, end of text {manifest.tokenizer.eot_id}")
    num_bytes = sum(entry.bytes for entry in inputs)
    out.line(f"  inputs     {counted(len(inputs), 'file')}, {counted(num_bytes, 'byte')}")
    out.line(f"  rows       {counted_rows(manifest.row_counts)}")
    if num_pruned := build.measured.get("rows_not_read") if build else None:
        out.line(
            f"             {num_pruned:,} of those filtered were not read: their paths or statistics rule them out"
        )
    for source, marks in (build.marks if build else {}).items():
        removed = ", ".join(f"{name} {counts.documents:,}" for name, counts in marks.removed.items()) or "none"
        copies = f"{marks.copies.documents:,} further copies, {marks.copies.tokens:,} tokens"
        out.line(f"  marks      {source}: documents left out: {removed}; {copies}")
    if found := facts.conversations:
        learned = f"{percent(found.learned_share)} of the tokens are learned by default"
        chats = f"{counted(found.conversations, 'conversation')}, {counted(found.turns, 'ended turn')} of the assistant"
        out.line(f"  chat       {chats}; {learned}" if found.conversations else f"  masks      {learned}")
        roles = (f"{role} {count:,}" for role, count in found.tokens.items())
        out.line(f"  roles      {', '.join(roles)}")
    splits = [
        [name, split.tokens, split.documents, split.duplicates, len(split.shards), split.shard_bytes]
        for name, split in manifest.splits.items()
    ]
    out.line()
    out.table(["split", "tokens", "documents", "duplicates", "shards", "bytes"], splits)
    for warning in facts.warnings:
        out.line(f"warning: {warning}")
    out.line(facts.file_check)
    gates = [asdict(gate) for gate in facts.recorded_gates]
    shown = {"inputs": [asdict(entry) for entry in inputs], "gates": gates, "warnings": facts.warnings}
    if found:
        shown["conversations"] = asdict(found)
    if build and build.marks:
        shown["marks"] = {source: asdict(marks) for source, marks in build.marks.items()}
    return Result(manifest.json() | shown)


def report(
    reference: Annotated[str, Argument("REF|STORE")],
    *,
    output: Annotated[Path | None, Argument("FILE")] = None,
    out: Output,
) -> Result:
    """Write a page with the figures of a version.

    Args:
        reference: a version: STORE/DATASET@TAG_OR_VERSION (default: @latest); or a store, for its catalogue
        output: where to write the page (default: reports/VERSION.html in the dataset's folder of the store; for a
            catalogue, index.html in the store)

    Example:
        report store/news --output news.html
    """
    folder = _store_of(reference)
    value = _write_report(reference, output) if folder is None else _write_catalogue(reference, folder, output)
    out.line(f"{value.get('report') or value['catalogue']}  {counted(value['bytes'], 'byte')}")
    return Result(value)


def _write_report(reference: str, output: Path | None) -> Json:
    from tokenloom.tasks.report.page import make_report, write_report

    store, manifest = resolve(parse_reference(reference))
    page, path = make_report(store, manifest), str(output)
    if output is None:
        path = write_report(store, manifest.version, page)
        refresh_catalogue(store)
    else:
        output.write_bytes(page)
    version = manifest.version
    return {"reference": f"{store.root}@{version}", "version": version, "report": path, "bytes": len(page)}


def _write_catalogue(root: str, folder: Store, output: Path | None) -> Json:
    from tokenloom.tasks.report.catalogue import render_catalogue, write_catalogue

    if output is None:
        path, num_bytes = write_catalogue(root)
    else:
        path, num_bytes = str(output), output.write_bytes(render_catalogue(root, folder).encode())
    return {"store": str(folder.root), "catalogue": path, "bytes": num_bytes}


def refresh_catalogue(store: Store) -> None:
    """Write the catalogue of a dataset's store again; if that fails, say so on stderr and go on."""
    from tokenloom.tasks.report.catalogue import try_to_write_catalogue

    if problem := try_to_write_catalogue(store):
        print_status(problem)


def _store_of(text: str) -> Store | None:
    """Return the store that `text` names; None if it names a version or a dataset."""
    if names_version(text):
        return None
    folder = open_store(text)
    names = [] if is_dataset(folder) else filter(NAME_PATTERN.match, folder.names(""))
    has_datasets = any(folder.exists(f"{name}/{part}") for name in names for part in ("versions", "tags"))
    return folder if has_datasets else None
