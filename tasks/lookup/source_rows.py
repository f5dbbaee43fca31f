"""Where the sources of a version are now, and one of their rows, read again as the build read it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from tokenloom.errors import InputError
from tokenloom.storage.formats.manifest import BUILD
from tokenloom.storage.formats.version_files import InputEntry
from tokenloom.storage.stores.remote_errors import is_transient, reason_of
from tokenloom.storage.versions.document_tables import VersionTables
from tokenloom.tasks.planning.inputs import InputFile, find_input
from tokenloom.tasks.rows.forms import TEXT, DocumentForm, form_of
from tokenloom.tasks.running.memory import each_bounded
from tokenloom.tasks.sources import make_reader
from tokenloom.tasks.verification.sources import checked_spec, located, read_rows, recorded_spec

if TYPE_CHECKING:  # importing it takes as long as reading a gigabyte
    from tokenloom.spec.build_spec import BuildSpec


class SpecOfVersion:
    """The spec of a version: the one that the user gives, else that of build.json, loaded only if a lookup needs it.

    Attributes:
        why_unknown: why there is none, once `spec` is None.

    Args:
        tables: those of the version.
        path: of the user's spec; None for build.json.

    Raises SpecError if the user's spec is wrong, or not that of the version.
    """

    def __init__(self, tables: VersionTables, path: str | None) -> None:
        self._tables = tables
        self.why_unknown = ""
        self._given: BuildSpec | None = None
        if path is not None:
            from tokenloom.spec.loading import load_spec

            self._given = checked_spec(load_spec(path), tables.manifest, "--spec")

    @cached_property
    def spec(self) -> BuildSpec | None:
        """The spec, None if it is not known."""
        if self._given is not None:
            return self._given
        try:
            return recorded_spec(self._tables.store, self._tables.manifest)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            if is_transient(error):
                raise
            self.why_unknown = f"{BUILD} does not say where it is ({reason_of(error)})"
            return None


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
