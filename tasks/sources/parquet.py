"""Parquet: a document is the text or conversation of one row; partitions are runs of row groups.

Only the needed columns are read. A filter is pushed down: row groups that can't hold a row it keeps, by their
statistics, are not read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenloom.errors import BadRow, InputError, message_of
from tokenloom.tasks.running.memory import no_memory
from tokenloom.tasks.sources.base import (
    BATCH_BYTES,
    FileRange,
    Group,
    Options,
    PartitionRange,
    RowBatch,
    cut_groups,
    locate_groups,
    numbered,
)
from tokenloom.tasks.sources.columns import Columns
from tokenloom.tasks.sources.files import announce, is_local, open_input
from tokenloom.tasks.sources.filters import may_keep
from tokenloom.tasks.sources.reader import SourceReader
from tokenloom.tasks.sources.values import check_batch
from tokenloom.wording import counted

_MAX_BATCH_ROWS = 65_536
_BUFFER_BYTES = 2**20  # read a column chunk in pieces of this size, never whole
_SIGNATURE_BYTES = 28  # after a footer that is not encrypted, if columns may be
_FEWER = 256  # a batch that is too large for memory is read again with so many times fewer rows


class Reader(SourceReader):
    """Reads parquet files.

    Args:
        options: see SourceReader; `text`, `id` and the columns of `filter` may be dotted, into structs.
        columns: takes the documents from record batches; by default texts or conversations, as the options say.
    """

    def __init__(self, options: Options, columns: Columns | None = None) -> None:
        self.columns = columns or Columns(options)
        self._max_bytes = int(options.get("max_bytes", 0))
        self._footer: tuple[str, pq.FileMetaData] | None = None  # the last file's: slow to parse

    @contextmanager
    def _open(self, url: str, part: FileRange | None = None) -> Iterator[pq.ParquetFile]:
        """Open a file, to read its footer, or the row groups of `part`."""
        with open_input(url) as file:
            known = self._footer[1] if self._footer and self._footer[0] == url else None
            opened = _parse(file, url, known)
            if known is None:
                check_plain(opened, url, file)
                self._footer = url, opened.metadata
            names = self.columns.needed(opened.schema_arrow, url)
            if part is not None and not is_local(url):
                announce(file, byte_ranges(opened, range(part.start, part.end), leaves_of(opened, names)))
            yield opened

    def schema(self, url: str) -> pa.Schema:
        """Return the columns of a file."""
        with open_input(url) as file:
            return _parse(file, url).schema_arrow

    def partitions(self, url: str) -> list[PartitionRange]:
        """See SourceReader.partitions; `start` and `end` count row groups."""
        with self._open(url) as file:
            leaves = leaves_of(file, self.columns.documents(file.schema_arrow, url))
            check_counts(file, url, leaves)
            groups = [group_of(file, i, leaves) for i in range(file.metadata.num_row_groups)]
            return cut_groups(groups, self.columns.partition_bytes)

    def batches(self, url: str, part: FileRange) -> Iterator[RowBatch]:
        """See SourceReader.batches; `start` and `end` count row groups."""
        with self._open(url, part) as file:
            num_rows = [file.metadata.row_group(group).num_rows for group in range(part.end)]
            row = part.first_row if part.first_row is not None else sum(num_rows[: part.start])
            tree = self.columns.filter_of(file.schema_arrow, url)
            groups = range(part.start, part.end)
            may_hold = may_keep(file, groups, tree).tolist() if tree else [True] * len(groups)
            for group, is_read in zip(groups, may_hold, strict=True):
                if is_read:
                    yield from self._read_group(url, file, group, row)
                else:
                    yield _not_read(file, num_rows[group])
                row += num_rows[group]

    def _read_group(self, url: str, file: pq.ParquetFile, group: int, first_row: int) -> Iterator[RowBatch]:
        num_rows = file.metadata.row_group(group).num_rows
        batches = self._batches(url, file, group)
        read = 0
        while True:
            place = f"{url}, row group {group}, after row {read} of it"
            try:
                if (batch := next(batches, None)) is None:
                    break
                check_batch(batch)
            except pa.ArrowMemoryError as error:
                raise InputError(f"{place}: {no_memory(self._max_bytes)}") from error
            except (pa.ArrowException, OSError, OverflowError) as error:
                message = f"{place}: can't be decoded: {message_of(error)}. Repair the file or leave it out"
                bad = BadRow(message, first_row + read, "bad_page", num_rows - read)
                yield _not_read(file, 0, bad)
                return
            yield numbered(batch, first_row + read)
            read += len(batch)
            del batch  # frees its memory before the next one is decoded
        if read != num_rows:
            raise InputError(
                f"{url}, row group {group}: {counted(read, 'row')}, its footer says {num_rows}; "
                "repair the file or leave it out"
            )

    def _batches(self, url: str, file: pq.ParquetFile, group: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a row group, in smaller batches if those that its footer suggests are too large.

        A page may hold one long text and a million references to it.
        """
        names = self.columns.needed(file.schema_arrow, url)
        sizes = group_of(file, group, leaves_of(file, names))
        batch_rows = min(_MAX_BATCH_ROWS, max(1, BATCH_BYTES // max(1, sizes.num_bytes // max(1, sizes.num_rows))))
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
                    del batch, fresh  # frees their memory before the next one is decoded
            except pa.ArrowMemoryError:
                if batch_rows == 1:
                    raise
                batch_rows = max(1, batch_rows // _FEWER)
            else:
                return

    def locate(self, url: str, rows: Sequence[int]) -> list[FileRange]:
        """See SourceReader.locate: the row groups that hold `rows`."""
        with self._open(url) as file:
            return locate_groups(rows, [group_of(file, i, []) for i in range(file.metadata.num_row_groups)])


def _read(file: IO[bytes], url: str, num_bytes: int = -1) -> bytes:
    """Read from an input file; a fault of the disk or network is an InputError, so that it is not a bad page."""
    try:
        return file.read(num_bytes)
    except OSError as error:  # Google Cloud Storage raises it without a number if credentials have expired
        raise InputError(f"{url}: can't be read: {error.strerror or error}; check the file") from error


def _parse(file: IO[bytes], url: str, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
    """Return an open file as parquet; raises InputError if it is not.

    Args:
        file: open for reading.
        url: for messages.
        metadata: the footer, if it was parsed before.
    """
    try:
        opened = pq.ParquetFile(
            SimpleNamespace(read=partial(_read, file, url), seek=file.seek, tell=file.tell, closed=False),
            buffer_size=_BUFFER_BYTES,
            pre_buffer=False,
            page_checksum_verification=True,
            metadata=metadata,
        )
        _schema = opened.schema_arrow  # decoded here, since this may fail
        return opened
    except InputError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: a column's name is not UTF-8
        reason = message_of(error)
        step = "It is encrypted: write it again without encryption," if "encrypted" in reason else "Repair the file"
        raise InputError(f"{url}: not a readable parquet file: {reason}. {step} or leave it out") from error


def _not_read(file: pq.ParquetFile, num_rows: int, *bad: BadRow) -> RowBatch:
    """Return a batch for rows of a file that were not read."""
    columns = [pa.nulls(0, kind) for kind in file.schema_arrow.types]
    return RowBatch(pa.record_batch(columns, schema=file.schema_arrow), np.empty(0, np.uint64), bad, num_rows)


def leaves_of(file: pq.ParquetFile, names: Sequence[str]) -> list[int]:
    """Return the positions of the leaf columns under dotted names."""
    paths = [file.schema.column(i).path for i in range(len(file.schema))]
    return [i for i, path in enumerate(paths) if any(path == name or path.startswith(name + ".") for name in names)]


def group_of(file: pq.ParquetFile, index: int, leaves: Sequence[int]) -> Group:
    """Return the size of a row group, of which the leaf columns `leaves` are read."""
    row_group = file.metadata.row_group(index)
    return Group(sum(row_group.column(i).total_uncompressed_size for i in leaves), row_group.num_rows)


def byte_ranges(file: pq.ParquetFile, groups: Iterable[int], leaves: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield where the column chunks of row groups are in the file, [start, end) each."""
    for group in groups:
        for column in map(file.metadata.row_group(group).column, leaves):
            start = column.data_page_offset
            if column.has_dictionary_page and column.dictionary_page_offset is not None:
                start = min(start, column.dictionary_page_offset)
            yield start, start + column.total_compressed_size


def check_plain(file: pq.ParquetFile, url: str, data: IO[bytes]) -> None:
    """Raise InputError if a column may be encrypted, under a plain footer: pyarrow ends the process that reads it."""
    data.seek(-8, os.SEEK_END)
    if int.from_bytes(data.read(4), "little") == file.metadata.serialized_size + _SIGNATURE_BYTES:
        raise InputError(
            f"{url}: signed, so a column may be encrypted; write it again without encryption, or leave it out"
        )


def check_counts(file: pq.ParquetFile, url: str, leaves: Sequence[int]) -> None:
    """Raise InputError if the footer contradicts itself on the rows and values of a row group.

    Rows beyond a number that is too small would not be read.
    """
    for group in range(file.metadata.num_row_groups):
        row_group = file.metadata.row_group(group)
        for i in leaves:
            num_rows = row_group.num_rows
            num_values = row_group.column(i).num_values
            is_one_each = file.schema.column(i).max_repetition_level == 0
            if num_rows > num_values or (num_rows < num_values and is_one_each):
                raise InputError(
                    f"{url}, row group {group}: its footer says {counted(num_rows, 'row')}, and "
                    f"{counted(num_values, 'value')}; repair the file or leave it out"
                )
