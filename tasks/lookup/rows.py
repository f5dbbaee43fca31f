"""Find the document of a source row, or why there is none."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import InputError, SpecError
from tokenloom.storage.formats.document_table import DocumentColumns
from tokenloom.storage.formats.keys import words_of
from tokenloom.storage.formats.manifest import QUARANTINE
from tokenloom.storage.formats.version_files import InputEntry
from tokenloom.storage.versions.document_tables import VersionTables
from tokenloom.storage.versions.published import version_path
from tokenloom.tasks.lookup.contents import Lookup, absent, hashed_text, scan, why_filtered, why_not_rendered
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

    Raises SpecError if several sources have the path.
    """
    of_source = [(number, entry) for number, entry in enumerate(tables.inputs) if source in (None, entry.source)]
    if source is not None and not of_source:
        names = list(dict.fromkeys(entry.source for entry in tables.inputs))
        return Lookup("not_an_input", f"no source is named {source!r}. {did_you_mean(source, names)}")
    matching = [(number, entry) for number, entry in of_source if entry.path == path]
    if not matching:
        paths = [entry.path for _, entry in of_source]
        close = near_miss(path.rpartition("/")[2], paths[:_MAX_COMPARED]) or f"Inputs: {first_of(paths, 3)}"
        reason = f"no input has the path {path!r}, which counts from the root of its source. {close}"
        return Lookup("not_an_input", reason)
    if len(matching) > 1:
        shared = first_of([entry.source for _, entry in matching])
        raise SpecError(f"{path}: several sources have this path: {shared}; give one with --source")
    ((number, entry),) = matching
    if reason := _of_another_path(tables, entry):
        return Lookup("no_such_row", reason)
    if reason := _quarantined(tables, entry, row):
        return Lookup("quarantined", reason)
    try:
        found = read_source_row(known, tables, entry, row)
    except InputError as error:
        return _scanned(tables, number, row, str(error))
    return _by_text(tables, entry, row, found, known)


def _by_text(tables: VersionTables, entry: InputEntry, row: int, found: SourceRow, known: SpecOfVersion) -> Lookup:
    """Return the document of a row whose text is known."""
    if not found.exists:
        return Lookup("no_such_row", f"{entry.path} has no row {row}")
    if not found.passes_filter:
        return Lookup("filtered", f"the filter of the source {entry.source} leaves it out")
    if (why := why_filtered(tables, found.text, found.form)) or found.text is None:
        return Lookup("filtered", why)
    hashed = hashed_text("the row of the source", found.text, found.form)
    content = words_of(bytes.fromhex(hashed["content"]))
    documents = tables.find(content) if tables.rules.deduplicate else tables.find_copy(content, entry.fingerprint, row)
    place = (entry.source, entry.path, row)
    if exact := [each for each in documents if (each["source"], each["path"], each["row"]) == place]:
        return Lookup("found", "", exact, [hashed])
    if documents:
        kept = documents[0]
        reason = f"its text was kept from {kept['source']}: {kept['path']}, row {kept['row']}"
        return Lookup("duplicate", reason, documents, [hashed])
    missing = absent(tables, [content], known, "no document has its text", [hashed])
    if missing.status == "not_found" and (why := why_not_rendered(tables, found.text, found.form)):
        return Lookup("filtered", why, [], [hashed])
    return missing


def _scanned(tables: VersionTables, number: int, row: int, why: str) -> Lookup:
    """Return the document of a row that can't be read, from the tables of all splits."""

    def matches(columns: DocumentColumns) -> NDArray[np.bool_]:
        is_row: NDArray[np.bool_] = (columns.input == number) & (columns.row == row)
        return is_row

    step = "reading document tables, as the source can't be read"
    if found := scan(tables, matches, tables.manifest.splits, step):
        return Lookup("found", "", found)
    return Lookup(
        "not_found",
        f"no document comes from this row; the source could say why, but can't be read: {why}; "
        "--spec names a spec that says where the sources are now",
    )


def _of_another_path(tables: VersionTables, entry: InputEntry) -> str:
    """Return why a file has no rows of its own, "" if it has: with `take`, they are counted through all files."""
    sources: Any = tables.manifest.spec.get("sources", [])
    takes = {source["name"] for source in sources if source.get("take") is not None}
    first = next(each.path for each in tables.inputs if each.source == entry.source)
    if entry.source not in takes or entry.path == first:
        return ""
    return f"{entry.source} has `take`: its rows are counted through all of its files, and have the path {first}"


def _quarantined(tables: VersionTables, entry: InputEntry, row: int) -> str:
    if QUARANTINE not in tables.manifest.files:
        return ""
    path = version_path(tables.manifest.version, QUARANTINE)
    reason = quarantine_reason(tables.store, path, entry.source, entry.path, row)
    return f"{QUARANTINE} lists it as {reason}: {REASONS.get(reason, 'a bad row')}" if reason else ""
