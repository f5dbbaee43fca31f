"""Read the first rows of several files as one stream: the option `take`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from tokenloom.errors import BadRow
from tokenloom.tasks.sources.base import Rows, SourceReader
from tokenloom.tasks.sources.rows.records import RawRow, RecordReader


def read_first(reader: SourceReader, urls: Sequence[str], num_rows: int) -> Iterator[Rows]:
    """Yield the first `num_rows` rows of files, counted through all of them, before any filter.

    Args:
        reader: the reader of the files; numbers rows by their position, or is a RecordReader.
        urls: the files, in order.
        num_rows: how many rows to read.
    """
    if isinstance(reader, RecordReader):
        records = islice(_records(reader, urls), num_rows)
        return reader.batches(records, lambda row: f"{urls[0]} and the files after it, row {row}")
    return _first(_joined(reader, urls), num_rows)


def _records(reader: RecordReader, urls: Sequence[str]) -> Iterator[RawRow]:
    """Yield the records of all files, numbered in sequence."""
    parts = ((url, part) for url in urls for part in reader.partitions(url))
    raw_rows = (raw for url, part in parts for raw in reader.raw_rows(url, part.start, part.end))
    for number, (_, value, num_bytes) in enumerate(raw_rows):
        yield RawRow(number, value.changed(row=number) if isinstance(value, BadRow) else value, num_bytes)


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
