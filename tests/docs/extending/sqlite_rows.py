"""SQLite: a document is the text of one row of a table; `row` is its rowid. Partitions are ranges of rowids."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import quote

from tokenloom.errors import InputError
from tokenloom.tasks.sources.base import FileRange, Options, PartitionRange, cut_evenly
from tokenloom.tasks.sources.files import input_bytes, open_input
from tokenloom.tasks.sources.reader import RawRow, RecordReader


class Reader(RecordReader):
    """Reads SQLite files.

    Args:
        options: see SourceReader; `table` is the table to read.
    """

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._table = '"' + str(options["table"]).replace('"', '""') + '"'

    @contextmanager
    def _open(self, url: str) -> Iterator[sqlite3.Connection]:
        _check_length(url)
        try:
            with closing(sqlite3.connect(f"file:{quote(url)}?mode=ro", uri=True)) as database:
                database.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
                yield database
        except sqlite3.Error as error:
            raise InputError(f"{url}: can't be read as SQLite: {error}; repair the file, or set table") from error

    def partitions(self, url: str) -> list[PartitionRange]:
        """See SourceReader.partitions; `start` and `end` count rowids."""
        with self._open(url) as database:
            first, last = database.execute(f"select min(rowid), max(rowid) from {self._table}").fetchone()
        if first is None:
            return []
        if first < 0:
            raise InputError(f"{url}: rowid {first} in {self._table}; rows are numbered from 0: repair the table")
        return cut_evenly(last + 1, input_bytes(url), self.columns.partition_bytes)

    def raw_rows(self, url: str, start: int, end: int) -> Iterator[RawRow]:
        """See RecordReader.raw_rows."""
        with self._open(url) as database:
            query = f"select rowid, * from {self._table} where rowid >= ? and rowid < ? order by rowid"
            rows = database.execute(query, (start, end))
            names = [column[0] for column in rows.description]
            for row in rows:
                num_bytes = sum(len(str(value)) for value in row)
                yield RawRow(row[0], dict(zip(names[1:], row[1:], strict=True)), num_bytes)

    def parse(self, raw: Any) -> Any:
        """See RecordReader.parse."""
        return raw

    def locate(self, url: str, rows: Sequence[int]) -> list[FileRange]:
        """See SourceReader.locate."""
        return [FileRange(row, row + 1) for row in rows]


def _check_length(url: str) -> None:
    """Raise InputError for a truncated file; SQLite would read the part that exists (sqlite.org/fileformat)."""
    with open_input(url) as file:
        header = file.read(32)
    page_bytes, num_pages = int.from_bytes(header[16:18]), int.from_bytes(header[28:32])
    if (65536 if page_bytes == 1 else page_bytes) * num_pages != input_bytes(url) or not num_pages:
        raise InputError(
            f"{url}: {input_bytes(url)} bytes, its header says {num_pages} pages; copy the file again: check it"
        )
