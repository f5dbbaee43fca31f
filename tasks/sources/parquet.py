"""Parquet: a document is the text of one row; partitions are runs of row groups; only the columns needed are read.

A filter is pushed down: row groups that cannot hold a row it keeps, by their statistics, are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenloom.errors import BadRow, InputError
from tokenloom.row_filter import Comparison, may_hold
from tokenloom.tasks.sources.base import BATCH_BYTES, PARTITION_BYTES, PartitionRange, Rows
from tokenloom.tasks.sources.columns import COMPARE, Columns
from tokenloom.tasks.sources.files import FoundFile, find_files, open_input

_MAX_BATCH_ROWS = 65_536
_BUFFER_BYTES = 2**20  # read a column chunk in pieces of this, never whole
_REPEATED_ROW_BYTES = 64  # rows of less, in a file, may be a few long texts that repeat


class Reader:
    """Reads parquet files.

    Args:
        options: see SourceReader; `text`, `id` and the columns of `filter` may be dotted, into structs.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._columns = Columns(options)
        self._skips = options.get("on_error") == "skip"
        self._footer: tuple[str, pq.FileMetaData] | None = None  # of the file opened last: slow to parse, opened often

    def files(self, path: str) -> list[FoundFile]:
        """See SourceReader.files."""
        return find_files(path)

    @contextmanager
    def _open(self, url: str, dictionary: list[str] | None = None) -> Iterator[pq.ParquetFile]:
        with open_input(url) as file:
            try:
                opened = pq.ParquetFile(
                    _Reads(file, url),
                    buffer_size=_BUFFER_BYTES,
                    pre_buffer=False,
                    page_checksum_verification=True,
                    read_dictionary=dictionary,
                    metadata=self._footer[1] if self._footer and self._footer[0] == url else None,
                )
                self._footer = (url, opened.metadata)
                schema = opened.schema_arrow
            except InputError:
                raise
            except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: a column's name is no UTF-8
                raise InputError(
                    f"{url}: no readable parquet file: {_said(error)}. Mend or leave out the file"
                ) from error
            self._columns.needed(schema, url)
            yield opened

    def _text_leaves(self, file: pq.ParquetFile) -> list[int]:
        paths = [file.schema.column(i).path for i in range(len(file.schema))]
        name = self._columns.text
        return [i for i, path in enumerate(paths) if path == name or path.startswith(name + ".")]

    def partitions(self, url: str) -> list[PartitionRange]:
        """See SourceReader.partitions; `start` and `end` count row groups."""
        with self._open(url) as file:
            leaves = self._text_leaves(file)
            groups = [
                (_text_bytes(file, i, leaves), file.metadata.row_group(i).num_rows)
                for i in range(file.metadata.num_row_groups)
            ]
        cuts: list[PartitionRange] = []
        start, num_bytes, num_rows = 0, 0, 0
        for i, (group_bytes, group_rows) in enumerate(groups):
            if num_bytes and num_bytes + group_bytes > PARTITION_BYTES:
                cuts.append(PartitionRange(start, i, num_bytes, num_rows))
                start, num_bytes, num_rows = i, 0, 0
            num_bytes, num_rows = num_bytes + group_bytes, num_rows + group_rows
        if start < len(groups):
            cuts.append(PartitionRange(start, len(groups), num_bytes, num_rows))
        return cuts

    def read(self, url: str, start: int, end: int) -> Iterator[Rows]:
        """See SourceReader.read; `start` and `end` count row groups."""
        with self._open(url, self._repeated(url, start, end)) as file:
            row = sum(file.metadata.row_group(i).num_rows for i in range(start))
            for group in range(start, end):
                num_rows = file.metadata.row_group(group).num_rows
                if self._may_keep(file, group):
                    yield from self._read_group(url, file, group, row)
                else:
                    yield _not_read(num_rows)
                row += num_rows

    def _repeated(self, url: str, start: int, end: int) -> list[str] | None:
        """Return the leaves to read as dictionaries: those whose rows take next to nothing in the file.

        A million copies of one text are a dictionary of one and a million small numbers: decoded as they are read,
        a batch of them could take any memory.
        """
        with self._open(url) as file:
            leaves = self._text_leaves(file)
            for group in range(start, end):
                num_rows = file.metadata.row_group(group).num_rows
                if _text_bytes(file, group, leaves) < _REPEATED_ROW_BYTES * num_rows:
                    return [file.schema.column(i).path for i in leaves]
        return None

    def _may_keep(self, file: pq.ParquetFile, group: int) -> bool:
        """Return whether a row group may hold a row that the filter keeps, by its statistics."""
        tree = self._columns.filter
        if tree is None:
            return True
        paths = [file.schema.column(i).path for i in range(len(file.schema))]
        row_group = file.metadata.row_group(group)

        def holds(comparison: Comparison) -> bool:
            if paths.count(comparison.column) != 1:
                return True
            return _may_hold(comparison, row_group.column(paths.index(comparison.column)).statistics)

        return may_hold(tree, holds)

    def _read_group(self, url: str, file: pq.ParquetFile, group: int, first_row: int) -> Iterator[Rows]:
        num_rows = file.metadata.row_group(group).num_rows
        row_bytes = max(1, _text_bytes(file, group, self._text_leaves(file)) // max(1, num_rows))
        batch_rows = min(_MAX_BATCH_ROWS, max(1, BATCH_BYTES // row_bytes))
        names = self._columns.needed(file.schema_arrow, url)
        read = 0
        batches = file.iter_batches(batch_size=batch_rows, row_groups=[group], columns=names, use_threads=False)
        while True:
            try:
                batch = next(batches, None)
            except (pa.ArrowException, OSError) as error:
                place = f"{url}, row group {group}, after row {read} of it"
                message = f"{place}: can't be decoded: {_said(error)}. Mend or leave out the file"
                if isinstance(error, MemoryError):
                    raise InputError(message) from error
                bad = BadRow(message, first_row + read, "bad_page", num_rows - read)
                if not self._skips:
                    raise bad from error
                yield _not_read(0, bad)
                return
            if batch is None:
                break
            yield from self._columns.rows(batch, first_row + read, url)
            read += len(batch)
        if read != num_rows:
            raise InputError(f"{url}, row group {group}: {read} rows, its footer says {num_rows}; mend the file")

    def locate(self, url: str, rows: Sequence[int]) -> list[tuple[int, int]]:
        """See SourceReader.locate: the row groups that hold `rows`."""
        with self._open(url) as file:
            counts = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
        groups = np.unique(np.searchsorted(np.cumsum(counts), np.array(rows), side="right"))
        return [(int(group), int(group) + 1) for group in groups]


class _Reads:
    """A file whose reads fail with InputError, so that what the disk or the network does is no damage of a page."""

    def __init__(self, file: IO[bytes], url: str) -> None:
        self._file, self._url = file, url

    def read(self, num_bytes: int = -1) -> bytes:
        try:
            return self._file.read(num_bytes)
        except OSError as error:
            raise InputError(f"{self._url}: can't be read: {error.strerror or error}; check the file") from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _text_bytes(file: pq.ParquetFile, group: int, leaves: list[int]) -> int:
    row_group = file.metadata.row_group(group)
    return sum(int(row_group.column(i).total_uncompressed_size) for i in leaves)


def _may_hold(comparison: Comparison, statistics: pq.Statistics | None) -> bool:
    """Return whether a column chunk may hold a value that a comparison keeps; nulls are never kept.

    (Arrow's own pruning by expressions gives up where a chunk holds a null.)
    """
    if statistics is None or not statistics.has_min_max:
        return True
    low, high, value = statistics.min, statistics.max, comparison.value
    if isinstance(low, Decimal) or low != low or high != high:  # compared as float; NaN, which no writer should give
        return True
    try:
        if comparison.operator == "!=":  # a NaN, which statistics leave out, is unlike every value
            return isinstance(low, float) or not low == value == high
        if comparison.operator == "==":
            return bool(low <= value <= high)
        return bool(COMPARE[comparison.operator](low if comparison.operator[0] == "<" else high, value))
    except TypeError:  # bytes and text, say
        return True


def _not_read(num_rows: int, *bad: BadRow) -> Rows:
    """Return what stands for rows whose bytes were not read."""
    return Rows(
        pa.array([], pa.large_string()), np.empty(0, np.uint64), num_filtered=num_rows, num_not_read=num_rows, bad=bad
    )


def _said(error: Exception) -> str:
    return str(error).rstrip(". ")
