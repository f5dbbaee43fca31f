"""Parquet: a document is the text of one row; partitions are runs of row groups; only the columns needed are read.

A filter is pushed down: row groups that cannot hold a row it keeps, by their statistics, are not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenloom.errors import BadRow, InputError, said
from tokenloom.spec.leave_out import LeaveOut
from tokenloom.spec.row_filter import COMPARE, Comparison, holds
from tokenloom.tasks.running.memory import no_memory
from tokenloom.tasks.sources.base import BATCH_BYTES, PartitionRange, Rows, cut_groups, groups_of
from tokenloom.tasks.sources.checks import check_batch
from tokenloom.tasks.sources.columns import Columns
from tokenloom.tasks.sources.files import FoundFile, expect, find_files, open_input
from tokenloom.wording import counted

_MAX_BATCH_ROWS = 65_536
_BUFFER_BYTES = 2**20  # read a column chunk in pieces of this, never whole
_FEWER = 256  # times fewer rows a batch when one is too large for memory
_REPEATED_ROW_BYTES = 64  # rows of less, in a file, may be a few long texts that repeat


class Reader:
    """Reads parquet files.

    Args:
        options: see SourceReader; `text`, `id` and the columns of `filter` may be dotted, into structs.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._columns = Columns(options)
        self._skips = options.get("on_error") == "skip"
        self._max_bytes = int(options.get("max_bytes", 0))
        self._footer: tuple[str, pq.FileMetaData] | None = None  # of the file opened last: slow to parse, opened often

    def files(self, path: str, leave_out: LeaveOut | None = None) -> list[FoundFile]:
        """See SourceReader.files."""
        return find_files(path, leave_out)

    def place(self, url: str, row: int) -> str:
        """See SourceReader.place."""
        return f"{url}, row {row}"

    @contextmanager
    def _open(
        self, url: str, dictionary: list[str] | None = None, groups: Iterable[int] = ()
    ) -> Iterator[pq.ParquetFile]:
        """Open a file, of which these row groups will be read."""
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
                    f"{url}: not a readable parquet file: {said(error)}. Repair the file or leave it out"
                ) from error
            leaves = _leaves(opened, self._columns.needed(schema, url))
            expect(file, [_chunk(opened.metadata.row_group(i).column(leaf)) for i in groups for leaf in leaves])
            yield opened

    def partitions(self, url: str) -> list[PartitionRange]:
        """See SourceReader.partitions; `start` and `end` count row groups."""
        with self._open(url) as file:
            leaves = _leaves(file, [self._columns.text])
            _check_counts(file, url, leaves)
            groups = [
                (_leaf_bytes(file, i, leaves), file.metadata.row_group(i).num_rows)
                for i in range(file.metadata.num_row_groups)
            ]
        return cut_groups(groups)

    def read(self, url: str, start: int, end: int) -> Iterator[Rows]:
        """See SourceReader.read; `start` and `end` count row groups."""
        with self._open(url, self._repeated(url, start, end), range(start, end)) as file:
            row = sum(file.metadata.row_group(i).num_rows for i in range(start))
            for group in range(start, end):
                num_rows = file.metadata.row_group(group).num_rows
                if self._may_keep(file, group):
                    yield from self._read_group(url, file, group, row)
                else:
                    yield _not_read(num_rows)
                row += num_rows

    def _repeated(self, url: str, start: int, end: int) -> list[str]:
        """Return the leaves to read as dictionaries: those whose rows take next to nothing in the file.

        A million copies of one text are a dictionary of one and a million small numbers: decoded as they are read,
        a batch of them could take any memory.
        """
        with self._open(url) as file:
            leaves = _leaves(file, self._columns.needed(file.schema_arrow, url))
            groups = [file.metadata.row_group(i) for i in range(start, end)]
            if any("view" in str(kind) for kind in file.schema_arrow.types):
                return []  # Arrow can't read a column as a dictionary that its schema calls a view
            return [
                file.schema.column(i).path
                for i in leaves
                if file.schema.column(i).physical_type == "BYTE_ARRAY"
                and any(g.column(i).total_uncompressed_size < _REPEATED_ROW_BYTES * g.num_rows for g in groups)
                and not any(code.startswith("DELTA") for g in groups for code in g.column(i).encodings)  # not built
            ]

    def _may_keep(self, file: pq.ParquetFile, group: int) -> bool:
        """Return whether a row group may hold a row that the filter keeps, by its statistics."""
        tree = self._columns.filter
        if tree is None:
            return True
        paths = [file.schema.column(i).path for i in range(len(file.schema))]
        row_group = file.metadata.row_group(group)

        def may_hold(comparison: Comparison) -> bool:
            if paths.count(comparison.column) != 1:
                return True
            return _may_hold(comparison, row_group.column(paths.index(comparison.column)).statistics)

        return holds(tree, may_hold)

    def _read_group(self, url: str, file: pq.ParquetFile, group: int, first_row: int) -> Iterator[Rows]:
        num_rows = file.metadata.row_group(group).num_rows
        batches = self._batches(url, file, group)
        read = 0
        while True:
            try:
                if (batch := next(batches, None)) is None:
                    break
                check_batch(batch)
            except pa.ArrowMemoryError as error:
                raise InputError(f"{_place(url, group, read)}: {no_memory(self._max_bytes)}") from error
            except (pa.ArrowException, OSError, OverflowError) as error:
                message = (
                    f"{_place(url, group, read)}: can't be decoded: {said(error)}. Repair the file or leave it out"
                )
                bad = BadRow(message, first_row + read, "bad_page", num_rows - read)
                if not self._skips:
                    raise bad from error
                yield _not_read(0, bad)
                return
            yield from self._columns.rows(batch, first_row + read, url)
            read += len(batch)
            del batch  # not while the next one is decoded
        if read != num_rows:
            raise InputError(
                f"{url}, row group {group}: {counted(read, 'row')}, its footer says {num_rows}; "
                "repair the file or leave it out"
            )

    def _batches(self, url: str, file: pq.ParquetFile, group: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a row group, in smaller batches if those that its footer suggests are too large.

        A page may hold one long text and a million references to it.
        """
        num_rows = file.metadata.row_group(group).num_rows
        names = self._columns.needed(file.schema_arrow, url)
        row_bytes = max(1, _leaf_bytes(file, group, _leaves(file, names)) // max(1, num_rows))
        batch_rows = min(_MAX_BATCH_ROWS, max(1, BATCH_BYTES // row_bytes))
        read = 0
        while True:
            position = 0
            try:
                for batch in file.iter_batches(batch_rows, row_groups=[group], columns=names, use_threads=False):
                    fresh = batch.slice(max(0, read - position))
                    position += len(batch)
                    read += len(fresh)
                    if len(fresh):
                        yield fresh
                    del batch, fresh  # not while the next one is decoded
            except pa.ArrowMemoryError:
                if batch_rows == 1:
                    raise
                batch_rows = max(1, batch_rows // _FEWER)
            else:
                return

    def locate(self, url: str, rows: Sequence[int]) -> list[tuple[int, int]]:
        """See SourceReader.locate: the row groups that hold `rows`."""
        with self._open(url) as file:
            counts = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
        return groups_of(rows, counts)


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


def _place(url: str, group: int, read: int) -> str:
    return f"{url}, row group {group}, after row {read} of it"


def _leaves(file: pq.ParquetFile, names: list[str]) -> list[int]:
    """Return the positions of the leaf columns under dotted names."""
    paths = [file.schema.column(i).path for i in range(len(file.schema))]
    return [i for i, path in enumerate(paths) if any(path == name or path.startswith(name + ".") for name in names)]


def _check_counts(file: pq.ParquetFile, url: str, leaves: list[int]) -> None:
    """Check that a footer says of each row group as many rows as values; of too few the rest would not be read."""
    for group in range(file.metadata.num_row_groups):
        row_group = file.metadata.row_group(group)
        for i in leaves:
            num_values = row_group.column(i).num_values
            if row_group.num_rows > num_values or (
                row_group.num_rows < num_values and file.schema.column(i).max_repetition_level == 0
            ):
                raise InputError(
                    f"{url}, row group {group}: its footer says {counted(row_group.num_rows, 'row')}, and "
                    f"{counted(num_values, 'value')} "
                    f"of {file.schema.column(i).path!r}: it is damaged; repair the file or leave it out"
                )


def _chunk(column: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Return where a column chunk lies in its file, [start, end)."""
    start = column.data_page_offset
    if column.has_dictionary_page and column.dictionary_page_offset is not None:
        start = min(start, column.dictionary_page_offset)
    return start, start + column.total_compressed_size


def _leaf_bytes(file: pq.ParquetFile, group: int, leaves: list[int]) -> int:
    row_group = file.metadata.row_group(group)
    return sum(int(row_group.column(i).total_uncompressed_size) for i in leaves)


def _may_hold(comparison: Comparison, statistics: pq.Statistics | None) -> bool:
    """Return whether a column chunk may hold a value that a comparison keeps; nulls are never kept.

    (Arrow's own pruning by expressions gives up where a chunk holds a null.)
    """
    if statistics is None or not statistics.has_min_max:
        return True
    value = comparison.value
    try:
        low, high = statistics.min, statistics.max
        if isinstance(low, Decimal) or low != low or high != high:  # compared as float; NaN, which none should give
            return True
        if comparison.operator == "!=":  # a NaN, which statistics leave out, is unlike every value
            return isinstance(low, float) or not low == value == high
        if comparison.operator == "==":
            return bool(low <= value <= high)
        return bool(COMPARE[comparison.operator](low if comparison.operator[0] == "<" else high, value))
    except (TypeError, UnicodeDecodeError):  # bytes and text, say; a bound that is no UTF-8
        return True


def _not_read(num_rows: int, *bad: BadRow) -> Rows:
    """Return what stands for rows whose bytes were not read."""
    return Rows(
        pa.array([], pa.large_string()), np.empty(0, np.uint64), num_filtered=num_rows, num_not_read=num_rows, bad=bad
    )
