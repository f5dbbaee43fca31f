"""Tokens that another trainer's tools made: a document is its ids, without those that mark its begin and end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module

import numpy as np

from tokenloom.spec.leave_out import LeaveOut
from tokenloom.tasks.sources.base import FileRange, Options, PartitionRange, Rows, SourceReader
from tokenloom.tasks.sources.files.finding import FoundFile
from tokenloom.tasks.sources.tokens.base import TokenFormat
from tokenloom.tasks.sources.tokens.documents import rows_of
from tokenloom.tasks.sources.tokens.listing import with_sides


class Reader(SourceReader):
    """Reads files of tokens; each format is a module with a class Format, imported on first use.

    Args:
        options: see TokenFormat.
    """

    def __init__(self, options: Options) -> None:
        module = import_module(f"tokenloom.tasks.sources.tokens.{options['format']}")
        self._format: TokenFormat = module.Format(options)
        self._skips = options.get("on_error") == "skip"

    def files(self, path: str, leave_out: LeaveOut | None = None) -> list[FoundFile]:
        """See SourceReader.files; raises InputError if a file lacks one that belongs to it."""
        return with_sides(self._format.files(path, leave_out), self._format)

    def notes(self, url: str) -> list[str]:
        """See SourceReader.notes."""
        return self._format.notes(url)

    def place(self, url: str, row: int) -> str:
        """See SourceReader.place."""
        return self._format.place(url, row)

    def partitions(self, url: str) -> list[PartitionRange]:
        """See SourceReader.partitions."""
        return self._format.partitions(url)

    def read(self, url: str, part: FileRange) -> Iterator[Rows]:
        """See SourceReader.read."""
        for piece in self._format.pieces(url, part):
            rows = rows_of(piece, url, self._format)
            del piece
            if rows.bad and not self._skips:
                before = int(np.searchsorted(rows.rows, rows.bad[0].row))
                yield replace(rows.head(before), bad=())  # an earlier row may break the document rules
                raise rows.bad[0]
            yield rows

    def locate(self, url: str, rows: Sequence[int]) -> list[FileRange]:
        """See SourceReader.locate."""
        return self._format.locate(url, rows)
