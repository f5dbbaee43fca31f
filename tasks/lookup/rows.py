"""Find the document of a source row, or why there is none."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import InputError, SpecError
from tokenloom.storage.formats.document_table import DocumentColumns
from tokenloom.storage.formats.keys import content_digits
from tokenloom.storage.formats.manifest import QUARANTINE
from tokenloom.storage.formats.version_files import InputEntry
from tokenloom.storage.versions.published import version_path
from tokenloom.tasks.lookup.contents import hash_of, hint, why_excluded, why_filtered
from tokenloom.tasks.lookup.known_spec import KnownSpec
from tokenloom.tasks.lookup.outcomes import HashedText, Lookup
from tokenloom.tasks.lookup.source_rows import SourceRow, read_source_row
from tokenloom.tasks.lookup.tables import VersionTables
from tokenloom.tasks.rows.quarantine import quarantine_reason
from tokenloom.tasks.sources.base import REASONS
from tokenloom.wording import first_of, near_miss

_MAX_COMPARED = 2000  # paths, to find one that is close


def look_up_row(tables: VersionTables, source: str | None, path: str, row: int, known: KnownSpec) -> Lookup:
    """Return the document of a row of an input, or of the row that its text was kept from, or why there is none.

    Args:
        tables: those of the version.
        source: the name of its source; None if only one source has the path.
        path: as inputs.json lists it.
        row: as the document table counts them.
        known: the version's spec, which says where the sources are.

    Raises SpecError if several sources have the path.
    """
    numbers = [
        number for number, entry in enumerate(tables.inputs) if entry.path == path and source in (None, entry.source)
    ]
    if not numbers:
        return Lookup("not_an_input", _not_an_input(tables.inputs, source, path), [], [])
    if len(numbers) > 1:
        names = first_of([tables.inputs[number].source for number in numbers])
        raise SpecError(f"{path}: several sources have this path: {names}; give one with --source")
    entry = tables.inputs[numbers[0]]
    if reason := _of_another_path(tables, entry):
        return Lookup("no_such_row", reason, [], [])
    if reason := _quarantined(tables, entry, row):
        return Lookup("quarantined", reason, [], [])
    try:
        if known.spec is None:
            raise InputError(known.why_unknown)
        found = read_source_row(known.spec, tables.store, entry, row)
    except InputError as error:
        return _scanned(tables, numbers[0], row, str(error))
    return _by_text(tables, entry, row, found, known)


def _by_text(tables: VersionTables, entry: InputEntry, row: int, found: SourceRow, known: KnownSpec) -> Lookup:
    """Return the document of a row whose text is known."""
    if not found.exists:
        return Lookup("no_such_row", f"{entry.path} has no row {row}{_of_lines(known, entry)}", [], [])
    if not found.passes_filter:
        return Lookup("filtered", f"the filter of the source {entry.source} leaves it out", [], [])
    if found.text is None and not tables.rules.transform:
        return Lookup("filtered", "it has no text", [], [])
    if (why := why_filtered(tables, found.text)) or found.text is None:
        return Lookup("filtered", why, [], [])
    content = hash_of(found.text)
    hashed: list[HashedText] = [
        {"what": "the row of the source", "bytes": len(found.text.encode()), "content": content_digits(content)}
    ]
    documents = tables.find(content) if tables.rules.deduplicate else tables.find_copy(content, entry.fingerprint, row)
    place = (entry.source, entry.path, row)
    if exact := [each for each in documents if (each["source"], each["path"], each["row"]) == place]:
        return Lookup("found", "", exact, hashed)
    if documents:
        kept = documents[0]
        reason = f"its text was kept from {kept['source']}: {kept['path']}, row {kept['row']}"
        return Lookup("duplicate", reason, documents, hashed)
    if excluded := why_excluded(tables, content, known):
        return Lookup("excluded", excluded, [], hashed)
    return Lookup("not_found", f"no document has its text{hint(tables)}", [], hashed)


def _scanned(tables: VersionTables, number: int, row: int, why: str) -> Lookup:
    """Return the document of a row that can't be read, from the tables of all splits."""

    def matches(columns: DocumentColumns) -> NDArray[np.bool_]:
        is_row: NDArray[np.bool_] = (columns.input == number) & (columns.row == row)
        return is_row

    found = tables.scan(matches, list(tables.manifest.splits), "reading document tables, as the source can't be read")
    if found:
        return Lookup("found", "", found, [])
    reason = (
        f"no document comes from this row; the source could say why (a duplicate, filtered, excluded, or no such row), "
        f"but can't be read: {why}; --spec names a spec that says where the sources are now"
    )
    return Lookup("not_found", reason, [], [])


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


def _not_an_input(inputs: list[InputEntry], source: str | None, path: str) -> str:
    """Return that a path is not an input, and one that is close."""
    sources = dict.fromkeys(entry.source for entry in inputs)
    if source is not None and source not in sources:
        hint = f"{near_miss(source, sources)} Sources: {first_of(list(sources))}".lstrip()
        return f"no source is named {source!r}. {hint}"
    paths = [entry.path for entry in inputs if source in (None, entry.source)]
    name = path.rpartition("/")[2]
    close = [each for each in paths if each.rpartition("/")[2] == name] or paths[:_MAX_COMPARED]
    hint = near_miss(path, close) or (
        f"Did you mean {close[0]}?" if len(close) == 1 else f"Inputs: {first_of(paths, 3)}"
    )
    return f"no input has the path {path!r}, which counts from the root of its source. {hint}"


def _of_lines(known: KnownSpec, entry: InputEntry) -> str:
    """Return a hint for kinds whose rows are byte offsets."""
    assert known.spec is not None  # it was read with it
    source = known.spec.sources[known.spec.source_names().index(entry.source)]
    return "; rows of this kind are byte offsets of lines" if source.kind in ("jsonl", "text") else ""
