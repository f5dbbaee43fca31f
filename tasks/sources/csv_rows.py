"""CSV (RFC 4180, or another dialect), plain or compressed: a document is the text of one row, or a conversation.

`row` is the number of the row after the header, or in a file without one. A quoted field may contain a line end, so a
file can't be cut: it is one partition, read as a stream.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from itertools import chain
from typing import IO, Any

from tokenloom.errors import BadRow, InputError, message_of
from tokenloom.spec.row_filter import comparisons_of, parse_filter
from tokenloom.spec.values import WHOLE_ROW
from tokenloom.tasks.sources.base import Options
from tokenloom.tasks.sources.csv_dialect import Dialect
from tokenloom.tasks.sources.files.compressed import open_decompressed
from tokenloom.tasks.sources.rows.fields import Fields
from tokenloom.tasks.sources.rows.records import RawRow
from tokenloom.tasks.sources.rows.shown_names import column_error
from tokenloom.tasks.sources.rows.text_files import TextFileReader
from tokenloom.wording import counted

_MAX_FIELD = 64_000_000  # characters; the parser takes about 12 bytes for each
_ADVICE = r'repair the file, set delimiter, or set escape: "\\" if a backslash stands before quotes in a field'


class Reader(TextFileReader):
    """Reads CSV files.

    Args:
        options: see SourceReader and Dialect. Without a `header`, `columns` names the fields; without
            `columns`, a field's name is its position, from "0" on.
    """

    def __init__(self, options: Options) -> None:
        super().__init__(options, Fields(options, parses_numbers=True))
        compared = comparisons_of(parse_filter(options["filter"])) if options.get("filter") else []
        keys = ("id", "text", "tools") if options.get("messages") == WHOLE_ROW else ("id", "text", "messages", "tools")
        named = [("filter", one.column) for one in compared] + [(key, options.get(key)) for key in keys]
        # column -> the key of the spec that names it
        self._needed = {str(column): key for key, column in named if column is not None}
        self._dialect = Dialect(options)
        self._has_header = bool(options.get("header", True))
        self._columns: list[str] = options.get("columns") or []

    def raw_rows(self, url: str, start: int, end: int) -> Iterator[RawRow]:
        """See RecordReader.raw_rows."""
        csv.field_size_limit(max(csv.field_size_limit(), _MAX_FIELD))  # has no setting for a single reader
        with open_decompressed(url) as file:
            if bad := self.utf16_row(url, file):
                yield RawRow(0, bad, 0)
                return
            text = self._text(url, file)
            lines = self._dialect.parse(self._lines(url, text))
            try:
                names, rows = self._named(url, (row for row in lines if row))  # a blank line is not a row
                for number, row in enumerate(rows):
                    value = dict(zip(names, self._dialect.fields(row), strict=False)) if len(row) == len(names) else row
                    yield RawRow(number, value, sum(map(len, row)))
            except csv.Error as error:
                raise InputError(
                    f"{url}, line {lines.line_num}: not valid CSV: {message_of(error)}; {_ADVICE}"
                ) from error
            finally:
                text.detach()

    def _text(self, url: str, file: IO[bytes]) -> io.TextIOWrapper:
        """Return a file as text; bytes that can't be decoded become lone surrogates (PEP 383)."""
        return io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="")

    def _lines(self, url: str, text: io.TextIOWrapper) -> Iterator[str]:
        while line := text.readline(_MAX_FIELD):
            if len(line) == _MAX_FIELD:
                raise InputError(f"{url}: a line of {_MAX_FIELD:,} characters or more; split it, or repair the file")
            yield line

    def _named(self, url: str, rows: Iterator[list[str]]) -> tuple[list[str], Iterator[list[str]]]:
        """Return the names of the fields and the rows of data; raises InputError if a needed name is missing."""
        if self._has_header:
            blank = (row for row in rows if len(row) > 1 or row[0].strip())  # without blank lines before it
            names = next(blank, [])
            self._check_names(url, names, "Set header: false if this is a row of data, check delimiter")
            return names, rows
        if self._columns:
            return self._columns, rows
        first = next(rows, None)
        if first is None:
            return [], rows
        names = [str(position) for position in range(len(first))]
        self._check_names(url, names, "Check delimiter")
        return names, chain([first], rows)

    def _check_names(self, url: str, names: list[str], check: str) -> None:
        for column, key in self._needed.items():
            if names.count(column) != 1 and (column in names or column not in self.fields.path_columns):
                raise column_error(url, key, column, names, check)

    def parse(self, place: str, row: int, raw: Any) -> Any:
        """See RecordReader.parse."""
        if isinstance(raw, dict):
            return raw
        found = counted(len(raw), "field")
        if self._columns:
            message = f"{found}, but columns names {len(self._columns)}; name every field in columns, or repair the row"
        else:
            message = f"{found}, unlike {'the header' if self._has_header else 'the first row'}; repair the row"
        raise BadRow(f"{place}: {message}", row, "fields")
