"""CSV with a header line (RFC 4180), plain or compressed: a document is the text of one row.

`row` is its number behind the header. A line end may stand in a quoted field, so a file can't be cut: it is one
partition, read as a stream.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tokenloom.errors import BadRow, InputError
from tokenloom.row_filter import comparisons_of, parse_filter
from tokenloom.tasks.sources.base import PartitionRange
from tokenloom.tasks.sources.fields import Fields
from tokenloom.tasks.sources.files import compression, input_bytes, open_decompressed
from tokenloom.tasks.sources.records import RecordReader
from tokenloom.tasks.sources.shown_names import shown_names

_MAX_FIELD = 64_000_000  # characters: the parser holds a field in some 12 bytes for each


class Reader(RecordReader):
    """Reads CSV files.

    Args:
        options: see SourceReader; `delimiter` is one character.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options, Fields(options, parses_numbers=True))
        compared = comparisons_of(parse_filter(options["filter"])) if options.get("filter") else []
        named = [("filter", one.column) for one in compared] + [(key, options.get(key)) for key in ("id", "text")]
        self._columns = {str(column): key for key, column in named if column is not None}  # the key that names each
        self._delimiter = str(options["delimiter"])

    def partitions(self, url: str) -> list[PartitionRange]:
        """See SourceReader.partitions: the whole file."""
        compression(url)
        size = input_bytes(url)
        return [PartitionRange(0, size, size, None)]

    def raw_rows(self, url: str, start: int, end: int) -> Iterator[tuple[int, Any, int]]:
        """See RecordReader.raw_rows."""
        csv.field_size_limit(max(csv.field_size_limit(), _MAX_FIELD))
        with open_decompressed(url) as file:
            text = io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="")
            rows = csv.reader(self._lines(url, text), delimiter=self._delimiter, strict=True)
            try:
                header = self._header(url, next(rows, []))
                filled = (row for row in rows if row)  # a blank line is no row
                for number, row in enumerate(filled):
                    value = dict(zip(header, row, strict=False)) if len(row) == len(header) else row
                    yield number, value, sum(map(len, row))
            except csv.Error as error:
                raise InputError(
                    f"{url}, line {rows.line_num}: not valid CSV: {error}; repair the file, or set delimiter"
                ) from error
            finally:
                text.detach()

    def _lines(self, url: str, text: io.TextIOWrapper) -> Iterator[str]:
        while line := text.readline(_MAX_FIELD):
            if len(line) == _MAX_FIELD:
                raise InputError(f"{url}: a line of {_MAX_FIELD:,} characters or more; split it, or repair the file")
            yield line

    def _header(self, url: str, header: list[str]) -> list[str]:
        for column, key in self._columns.items():
            if header.count(column) != 1:
                found = "two columns" if column in header else "no column"
                names = shown_names(header)
                raise InputError(f"{url}: {found} {column!r}; its columns are: {names}. Set {key}: to one of them")
        return header

    def parse(self, place: str, row: int, raw: Any) -> Any:
        """See RecordReader.parse."""
        if isinstance(raw, dict):
            return raw
        raise BadRow(f"{place}: {len(raw)} fields, unlike the header; repair the row", row, "fields")

    def locate(self, url: str, rows: Sequence[int]) -> list[tuple[int, int]]:
        """See SourceReader.locate: the whole file."""
        return [(0, input_bytes(url))]
