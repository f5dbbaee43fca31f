"""Read one row of a source again, as the build read it, to learn its text or why it has none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokenloom.errors import InputError
from tokenloom.storage.formats.version_files import InputEntry
from tokenloom.storage.stores.store import Store
from tokenloom.tasks.planning.inputs import InputFile, find_input
from tokenloom.tasks.running.memory import each_bounded
from tokenloom.tasks.sources import make_reader
from tokenloom.tasks.verification.reencoding import located, read_rows

if TYPE_CHECKING:  # importing it takes as long as reading a gigabyte
    from tokenloom.spec.build_spec import BuildSpec


@dataclass(frozen=True)
class SourceRow:
    """A row of a source: its text after the transform, None if that or a null leaves it out.

    `exists` is False for a number that no row has, `passes_filter` for a row that the filter of its source leaves out.
    """

    text: str | None
    exists: bool = True
    passes_filter: bool = True


def read_source_row(spec: BuildSpec, store: Store, entry: InputEntry, row: int) -> SourceRow:
    """Return a row of an input.

    Args:
        spec: says where the sources are.
        store: the dataset's, where fingerprints may be remembered.
        entry: the input.
        row: its number, as in the document table.

    Raises InputError if the input is gone, has changed, or can't be read.
    """
    file = find_input(spec, store, entry.source, entry.path)
    if file is None:
        raise InputError(f"{entry.source}: {entry.path} is gone")
    if file.fingerprint != entry.fingerprint:
        raise InputError(f"{file.url}: it has changed since the build")
    transform = spec.documents.transform.function if spec.documents.transform else None
    for text in _texts(file, row, transform):
        return SourceRow(text)
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


def _texts(file: InputFile, row: int, transform: str | None) -> Iterator[str | None]:
    for texts, _, _ in read_rows(file, [row], transform):
        yield from texts.to_pylist()
