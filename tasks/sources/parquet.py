"""Parquet: a document is the text of one row; partitions are runs of row groups; one column is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenloom.errors import InputError
from tokenloom.tasks.sources.base import BATCH_BYTES, PARTITION_BYTES, PartitionRange, Rows, open_input

_MAX_BATCH_ROWS = 65_536
_BUFFER_BYTES = 2**20  # read a column chunk in pieces of this, never whole


class Reader:
    """Reads parquet files.

    Args:
        options: `text`, the name of the text column.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._column = str(options["text"])

    @contextmanager
    def _open(self, url: str) -> Iterator[pq.ParquetFile]:
        with open_input(url) as file:
            try:
                opened = pq.ParquetFile(
                    file, buffer_size=_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True
                )
                schema = opened.schema_arrow
            except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: a column's name is no UTF-8
                raise InputError(
                    f"{url}: no readable parquet file: {_said(error)}. Mend or leave out the file"
                ) from error
            self._check_column(url, schema)
            yield opened

    def _check_column(self, url: str, schema: pa.Schema) -> None:
        if self._column not in schema.names:
            names = ", ".join(schema.names)
            raise InputError(f"{url}: no column {self._column!r}; its columns are: {names}. Set text: to one of them")
        if schema.names.count(self._column) > 1:
            raise InputError(f"{url}: two columns are named {self._column!r}; mend the file")
        kind = schema.field(self._column).type
        if kind not in (pa.string(), pa.large_string()):
            raise InputError(
                f"{url}: column {self._column!r} is {kind}; a text column is string or large_string. "
                "Set text: to such a column"
            )

    def _text_bytes(self, file: pq.ParquetFile, group: int) -> int:
        index = [file.schema.column(i).path for i in range(len(file.schema))].index(self._column)
        return int(file.metadata.row_group(group).column(index).total_uncompressed_size)

    def partitions(self, url: str) -> list[PartitionRange]:
        """See SourceReader.partitions; `start` and `end` count row groups."""
        with self._open(url) as file:
            groups = [
                (self._text_bytes(file, i), file.metadata.row_group(i).num_rows)
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
        with self._open(url) as file:
            row = sum(file.metadata.row_group(i).num_rows for i in range(start))
            for group in range(start, end):
                for texts in self._read_group(url, file, group):
                    yield Rows(texts, np.arange(row, row + len(texts), dtype=np.uint64))
                    row += len(texts)

    def _read_group(self, url: str, file: pq.ParquetFile, group: int) -> Iterator[pa.Array]:
        num_rows = file.metadata.row_group(group).num_rows
        row_bytes = max(1, self._text_bytes(file, group) // max(1, num_rows))
        batch_rows = min(_MAX_BATCH_ROWS, max(1, BATCH_BYTES // row_bytes))
        read = 0
        try:
            for batch in file.iter_batches(
                batch_size=batch_rows, row_groups=[group], columns=[self._column], use_threads=False
            ):
                texts = batch.column(0)
                texts.validate(full=True)  # the decoder does not check that strings are UTF-8
                read += len(texts)
                yield texts.cast(pa.large_string())
        except (pa.ArrowException, OSError) as error:
            raise InputError(
                f"{url}, row group {group}, after row {read} of it: can't be decoded: {_said(error)}. "
                "Mend or leave out the file"
            ) from error
        if read != num_rows:
            raise InputError(f"{url}, row group {group}: {read} rows, its footer says {num_rows}; mend the file")

    def locate(self, url: str, rows: Sequence[int]) -> list[tuple[int, int]]:
        """See SourceReader.locate: the row groups that hold `rows`."""
        with self._open(url) as file:
            counts = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
        groups = np.unique(np.searchsorted(np.cumsum(counts), np.array(rows), side="right"))
        return [(int(group), int(group) + 1) for group in groups]


def _said(error: Exception) -> str:
    return str(error).rstrip(". ")
