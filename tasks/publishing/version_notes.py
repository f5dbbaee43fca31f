"""What to know of a version, in a line each: its tokenizer's file, its empty parts, what was checked of its files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from shlex import quote
from typing import Any

from tokenloom.storage.formats.manifest import Manifest, TokenizerEntry
from tokenloom.storage.formats.statistics import add_sources
from tokenloom.storage.formats.version_files import BuildRecord, GateResult
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import missing_file
from tokenloom.storage.versions.version_spec import DocumentOptions, version_spec
from tokenloom.tasks.publishing.gates import NOT_COMPARED
from tokenloom.wording import counted, tokenizer_name


def tokenizer_label(entry: TokenizerEntry, definition: object) -> dict[str, Any]:
    """Return a tokenizer's name, kind and vocabulary size for people; see tokenizer_name for the definition."""
    return entry.label | {"name": tokenizer_name(entry.name, entry.kind, definition)}


def empty_parts(store: Store, manifest: Manifest, build: BuildRecord | None) -> list[str]:
    """Return a line for each source of which a version keeps nothing, and one for its splits without a document.

    Args:
        store: the dataset's store.
        manifest: of the version.
        build: its build.json; sources are not compared without it.

    Raises FormatError if the manifest has values that no build writes.
    """
    spec = version_spec(store, manifest)
    shares = dict(spec.splits)
    empty = {name: shares.get(name, 0.0) for name, split in manifest.splits.items() if not split.documents}
    return [*empty_splits(empty, manifest.num_documents), *_empty_sources(build, spec.documents)]


def empty_splits(shares: Mapping[str, float], num_documents: int, *, is_estimate: bool = False) -> list[str]:
    """Return a line for the splits, by name with their share of some documents, that are or may be empty, if any."""
    if not shares:
        return []
    listed = " and ".join(f"the split {name} (share {share:g})" for name, share in shares.items())
    none, about = ("perhaps no", "about ") if is_estimate else ("no", "")
    documents = f"{about}{counted(num_documents, 'document')}"
    return [f"{none} document in {listed} of {documents}; add documents, or give larger shares in `splits`"]


def _empty_sources(build: BuildRecord | None, rules: DocumentOptions) -> Iterator[str]:
    if build is None:
        return
    kept = add_sources([split.sources for split in build.statistics.values()])
    causes = {"are in other sources too": rules.deduplicate, "are excluded": rules.exclude is not None}
    why_dropped = " or ".join(cause for cause, is_set in causes.items() if is_set)
    for name, encoded in build.encoded.items():
        if encoded.documents and name not in kept:
            found = counted(encoded.documents, "document")
            yield f"source {name}: nothing is kept of {found}, which {why_dropped}; remove the source if that is right"
        elif name not in kept:
            yield (
                f"source {name}: nothing is kept: its rows have no text, or its filter or a rule of `documents` leaves "
                "them out; check these, or remove the source"
            )


def file_check(store: Store, manifest: Manifest) -> str:
    """Return what the lengths of a version's files show, and which command reads their bytes."""
    reference = f"{store.root}@{manifest.version}"
    if name := missing_file(store, manifest):
        verify = f"`tokenloom verify {quote(reference)}`"
        return f"damaged: {name} is missing or cut short; {verify} lists all damage, and what to do"
    return lengths_checked(reference)


def lengths_checked(reference: str) -> str:
    """Return that the files of a version have the right lengths, and what checks the rest."""
    return f"only the lengths of its files were checked; `tokenloom verify {quote(reference)}` reads their bytes"


def gate_line(gate: GateResult) -> str:
    """Return the result of a check of the spec."""
    if gate.found.startswith(NOT_COMPARED):
        return f"check {gate.name}: {gate.found}"
    result = "passed" if gate.passed else "failed"
    return f"check {gate.name} {result}: expected {gate.expected}, found {gate.found}"
