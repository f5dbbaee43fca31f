"""Find the document of a source row, or why there is none."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import InputError, SpecError
from tokenloom.storage.formats.document_table import DocumentColumns
from tokenloom.storage.formats.keys import words_of
from tokenloom.storage.formats.manifest import QUARANTINE
from tokenloom.storage.formats.version_files import InputEntry
from tokenloom.storage.versions.document_tables import VersionTables
from tokenloom.storage.versions.published import version_path
from tokenloom.tasks.lookup.contents import Lookup, absent, content_of, scan, why_filtered
from tokenloom.tasks.lookup.source_rows import SourceRow, SpecOfVersion, read_source_row
from tokenloom.tasks.rows.quarantine import quarantine_reason
from tokenloom.tasks.sources.base import REASONS
from tokenloom.wording import did_you_mean, first_of, near_miss

_MAX_COMPARED = 2000  # paths among which one that is close is looked for


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
