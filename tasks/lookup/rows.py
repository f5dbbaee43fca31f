"""Find the document of a source row, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import InputError, SpecError
from tokenloom.storage.formats.document_table import DocumentColumns
from tokenloom.storage.formats.keys import words_of
from tokenloom.storage.formats.manifest import QUARANTINE
from tokenloom.storage.formats.version_files import InputEntry
from tokenloom.storage.versions.document_tables import VersionTables
from tokenloom.storage.versions.published import version_path
from tokenloom.tasks.building.check import located, read_rows
from tokenloom.tasks.building.inputs import InputFile, find_input
from tokenloom.tasks.lookup.contents import Lookup, SpecOfVersion, absent, content_of, scan, why_filtered
from tokenloom.tasks.rows.quarantine import quarantine_reason
from tokenloom.tasks.rows.rules import TEXT, DocumentForm, form_of
from tokenloom.tasks.running.memory import each_bounded
from tokenloom.tasks.sources import make_reader
from tokenloom.tasks.sources.base import REASONS
from tokenloom.wording import did_you_mean, first_of, near_miss

_MAX_COMPARED = 2000  # paths among which one that is close is looked for


@dataclass(frozen=True)
class SourceRow:
    """A row of a source: its text after the transform, None if that or a null leaves it out, and its form.

    Tokens have their ids as bytes in place of a text.

    `exists` is False for a number that no row has, `passes_filter` for a row that the filter of its source leaves out.
    """

    text: str | bytes | None
    exists: bool = True
    passes_filter: bool = True
    form: DocumentForm = TEXT


def read_source_row(known: SpecOfVersion, tables: VersionTables, entry: InputEntry, row: int) -> SourceRow:
    """Return a row of an input.

    Args:
        known: says where the sources are.
        tables: those of the version; fingerprints may be remembered in its store.
        entry: the input.
        row: its number, as in the document table.

    Raises InputError if nothing says where the input is, or if it is gone, has changed, or can't be read.
    """
    spec = known.spec
    if spec is None:
        raise InputError(known.why_unknown)
    file = find_input(spec, tables.store, entry.source, entry.path)
    if file is None:
        raise InputError(f"{entry.source}: {entry.path} is gone")
    if file.fingerprint != entry.fingerprint:
        raise InputError(f"{file.url}: it has changed since the build")
    transform = spec.documents.transform.function if spec.documents.transform else None
    for found, _ in read_rows(file, [row], transform):
        return SourceRow(found.texts[0].as_py(), form=form_of(file.options))
    if file.options.get("filter") and _has_row(file, row):
        return SourceRow(None, passes_filter=False)
    return SourceRow(None, exists=False)


def _has_row(file: InputFile, row: int) -> bool:
    """Return whether a file has a row, which may have no usable text: a filter leaves out such rows, too."""
    reader = make_reader({**file.options, "filter": None, "on_error": "skip"})
    return any(
        np.isin(row, batch.rows) or any(bad.row <= row < bad.row + bad.num_rows for bad in batch.bad)
        for batch in each_bounded(located(reader, file.url, [row]), file.options["max_bytes"], file.url)
    )


def look_up_row(tables: VersionTables, source: str | None, path: str, row: int, known: SpecOfVersion) -> Lookup:
    """Return the document of a row of an input, or of the row that its text was kept from, or why there is none.

    Args:
        tables: those of the version.
        source: the name of its source; None if only one source has the path.
        path: as inputs.json lists it.
        row: as the document table counts them.
        known: the version's spec, which says where the sources are.

    Raises SpecError if no input has the path, or inputs of several sources have it.
    """
    of_source = [(number, entry) for number, entry in enumerate(tables.inputs) if source in (None, entry.source)]
    if source is not None and not of_source:
        names = list(dict.fromkeys(entry.source for entry in tables.inputs))
        raise SpecError(f"--source: no source is named {source!r}. {did_you_mean(source, names)}")
    matching = [(number, entry) for number, entry in of_source if entry.path == path]
    if not matching:
        paths = [entry.path for _, entry in of_source]
        close = near_miss(path.rpartition("/")[2], paths[:_MAX_COMPARED]) or f"Inputs: {first_of(paths, 3)}"
        raise SpecError(f"--path: no input has the path {path!r}, which counts from the root of its source. {close}")
    if len(matching) > 1:
        shared = first_of([entry.source for _, entry in matching])
        raise SpecError(f"{path}: several sources have this path: {shared}; give one with --source")
    ((number, entry),) = matching
    if reason := _quarantined(tables, entry, row):
        return Lookup("quarantined", reason, None)
    try:
        found = read_source_row(known, tables, entry, row)
    except InputError as error:
        return _scanned(tables, number, row, str(error))
    return _by_text(tables, entry, row, found, known)


def _by_text(tables: VersionTables, entry: InputEntry, row: int, found: SourceRow, known: SpecOfVersion) -> Lookup:
    """Return the document of a row whose text is known."""
    if not found.exists:
        return Lookup("not_found", f"{entry.path} has no row {row}", None)
    if not found.passes_filter:
        return Lookup("filtered", f"the filter of the source {entry.source} leaves it out", None)
    if found.text is None:
        return Lookup("filtered", why_filtered(tables, None, found.form), None)
    content = content_of(found.text, found.form)
    words = words_of(bytes.fromhex(content))
    documents = tables.find(words) if tables.rules.deduplicate else tables.find_copy(words, entry.fingerprint, row)
    place = (entry.source, entry.path, row)
    if exact := [each for each in documents if (each["source"], each["path"], each["row"]) == place]:
        return Lookup("found", "", content, exact)
    if documents:
        kept = documents[0]
        reason = f"its text was kept from {kept['source']}: {kept['path']}, row {kept['row']}"
        return Lookup("duplicate", reason, content, documents)
    if why := why_filtered(tables, found.text, found.form):
        return Lookup("filtered", why, content)
    return absent(tables, content, known)


def _scanned(tables: VersionTables, number: int, row: int, why: str) -> Lookup:
    """Return the document of a row that can't be read, from the tables of all splits."""

    def matches(columns: DocumentColumns) -> NDArray[np.bool_]:
        is_row: NDArray[np.bool_] = (columns.input == number) & (columns.row == row)
        return is_row

    step = "reading document tables, as the source can't be read"
    if found := scan(tables, matches, tables.manifest.splits, step):
        return Lookup("found", "", found[0]["content"], found)
    return Lookup(
        "not_found",
        f"no document comes from this row; the source could say why, but can't be read: {why}; "
        "--spec names a spec that says where the sources are now",
        None,
    )


def _quarantined(tables: VersionTables, entry: InputEntry, row: int) -> str:
    if QUARANTINE not in tables.manifest.files:
        return ""
    path = version_path(tables.manifest.version, QUARANTINE)
    reason = quarantine_reason(tables.store, path, entry.source, entry.path, row)
    return f"{QUARANTINE} lists it as {reason}: {REASONS.get(reason, 'a bad row')}" if reason else ""
