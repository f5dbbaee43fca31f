"""Read the first rows of several files as one stream: the option `take`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from tokenloom.errors import BadRow
from tokenloom.tasks.sources.base import FileRange, Options, PartitionRange, Rows, SourceReader
from tokenloom.tasks.sources.rows.records import RawRow, RecordReader


def read_first(reader: SourceReader, options: Options, urls: Sequence[str], num_rows: int) -> Iterator[Rows]:
    """Yield the first `num_rows` rows of files, counted through all of them, before any filter.

    Args:
        reader: the reader of the files; numbers rows by their position, or is a RecordReader.
        options: the reader's options.
        urls: the files, in order.
        num_rows: how many rows to read.
    """
    if isinstance(reader, RecordReader):
        return _FirstRecords(reader, options, urls, num_rows).read(urls[0], FileRange(0, 1))
    return _first(_joined(reader, urls), num_rows)


class _FirstRecords(RecordReader):
    """The first records of several files, numbered by their position among them."""

    def __init__(self, reader: RecordReader, options: Options, urls: Sequence[str], num_rows: int) -> None:
        super().__init__(options, reader.fields)
        self._reader = reader
        self._urls, self._num_rows = urls, num_rows

    def partitions(self, url: str) -> list[PartitionRange]:
        return [PartitionRange(0, 1, 0, None)]

    def raw_rows(self, url: str, start: int, end: int) -> Iterator[RawRow]:
        for number, (_, raw, num_bytes) in enumerate(islice(self._records(), self._num_rows)):
            bad = raw.changed(row=number, num_rows=1) if isinstance(raw, BadRow) else None
            yield RawRow(number, bad or raw, num_bytes)

    def _records(self) -> Iterator[RawRow]:
        for url in self._urls:
            for part in self._reader.partitions(url):
                yield from self._reader.raw_rows(url, part.start, part.end)

    def place(self, url: str, row: int) -> str:
        return f"{url} and the files after it, row {row}"

    def parse(self, place: str, row: int, raw: Any) -> Any:
        return self._reader.parse(place, row, raw)

    def locate(self, url: str, rows: Sequence[int]) -> list[FileRange]:
        return [FileRange(0, 1)]


def _joined(reader: SourceReader, urls: Sequence[str]) -> Iterator[Rows]:
    """Yield the rows of all files, numbered in sequence."""
    first_row = 0
    for url in urls:
        num_rows = 0
        for part in reader.partitions(url):
            for rows in reader.read(url, part):
                num_rows += rows.num_read
                bad = tuple(one.changed(row=one.row + first_row) for one in rows.bad)
                yield replace(rows, rows=rows.rows + np.uint64(first_row), bad=bad)
        first_row += num_rows


def _first(batches: Iterator[Rows], num_rows: int) -> Iterator[Rows]:
    start = 0
    for rows in batches:
        end = start + rows.num_read
        if end >= num_rows:
            yield rows if end == num_rows else _cut(rows, start, num_rows)
            return
        yield rows
        start = end


def _cut(rows: Rows, start: int, end: int) -> Rows:
    """Return the part before row `end` of a batch that accounts for the rows from `start` on."""
    count = int(np.searchsorted(rows.rows, np.uint64(end)))
    bad = tuple(one.changed(num_rows=min(one.num_rows, end - one.row)) for one in rows.bad if one.row < end)
    num_filtered = end - start - count - sum(one.num_rows for one in bad)
    ids = None if rows.ids is None else rows.ids[:count]
    return Rows(rows.texts[:count], rows.rows[:count], ids, num_filtered, min(rows.num_not_read, num_filtered), bad)
