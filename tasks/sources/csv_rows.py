r"""CSV (RFC 4180, or another dialect), plain or compressed: a document is the text of one row, or a conversation.

`row` is the number of the row after the header, or in a file without one. A quoted field may contain a line end, so a
file can't be cut: it is one partition, read as a stream.

Delimiter, quote and escape may be those of MySQL, PostgreSQL and Spark. Python's parser drops the escape before any
character, which would turn Spark's `C:\new` into `C:new`. So each escape that means something else is rewritten before
the parser sees it:

| escape and | means |
|---|---|
| the quote, escape, delimiter, or a line end | that character |
| N, as the whole field | null (MySQL, PostgreSQL) |
| b f n r t v, without quotes | the control character (PostgreSQL's COPY) |
| anything else | both characters (Spark) |
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from itertools import chain
from typing import IO, TYPE_CHECKING, Any

from tokenloom.errors import InputError, message_of
from tokenloom.spec.row_filter import comparisons_of, parse_filter
from tokenloom.spec.values import WHOLE_ROW
from tokenloom.tasks.sources.base import BadValue, Options
from tokenloom.tasks.sources.column_names import column_error
from tokenloom.tasks.sources.files import open_decompressed
from tokenloom.tasks.sources.lines import TextFileReader
from tokenloom.tasks.sources.reader import RawRow
from tokenloom.wording import counted

if TYPE_CHECKING:
    import _csv

_MAX_FIELD = 64_000_000  # characters; the parser takes about 12 bytes for each
_ADVICE = r'repair the file, set delimiter, or set escape: "\\" if a backslash stands before quotes in a field'
_NULL = "\udfff"  # no text holds it: bytes that can't be decoded become U+DC80 to U+DCFF
_CONTROLS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class Reader(TextFileReader):
    """Reads CSV files.

    Args:
        options: see SourceReader and Dialect. Without a `header`, `columns` names the fields; without
            `columns`, a field's name is its position, from "0" on.
    """

    parses_numbers = True

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        compared = comparisons_of(parse_filter(options["filter"])) if options.get("filter") else []
        keys = ("id", "text", "tools") if options.get("messages") == WHOLE_ROW else ("id", "text", "messages", "tools")
        named = [("filter", one.column) for one in compared] + [(key, options.get(key)) for key in keys]
        # column -> the key of the spec that names it
        self._needed = {str(column): key for key, column in named if column is not None}
        self._dialect = Dialect(options)
        self._has_header = bool(options.get("header", True))
        self._names_given: list[str] = options.get("columns") or []

    def raw_rows(self, url: str, start: int, end: int) -> Iterator[RawRow]:
        """See RecordReader.raw_rows."""
        csv.field_size_limit(max(csv.field_size_limit(), _MAX_FIELD))  # has no setting for a single reader
        with open_decompressed(url) as file:
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
        if self._names_given:
            return self._names_given, rows
        first = next(rows, None)
        if first is None:
            return [], rows
        names = [str(position) for position in range(len(first))]
        self._check_names(url, names, "Check delimiter")
        return names, chain([first], rows)

    def _check_names(self, url: str, names: list[str], check: str) -> None:
        for column, key in self._needed.items():
            if names.count(column) != 1 and (column in names or column not in self.columns.path_columns):
                raise column_error(url, key, column, names, check)

    def parse(self, raw: dict[str, Any] | list[str]) -> dict[str, Any]:
        """See RecordReader.parse."""
        if isinstance(raw, dict):
            return raw
        found = counted(len(raw), "field")
        if self._names_given:
            names = len(self._names_given)
            raise BadValue(
                f"{found}, but columns names {names}; name every field in columns, or repair the row", "fields"
            )
        first = "the header" if self._has_header else "the first row"
        raise BadValue(f"{found}, unlike {first}; repair the row", "fields")


class Dialect:
    """How the fields of a CSV source are written.

    Args:
        options: `delimiter`, `quote` ("" for none) and `escape` (None for none), one character each.
    """

    def __init__(self, options: Options) -> None:
        self.delimiter = str(options["delimiter"])
        self._quote = str(options.get("quote", '"'))
        self._escape: str | None = options.get("escape")

    def parse(self, lines: Iterator[str]) -> _csv.Reader:
        """Return the parser of a file's lines."""
        return csv.reader(
            self._rewritten(lines, self.delimiter) if self._escape else lines,
            delimiter=self.delimiter,
            quotechar=self._quote or None,
            quoting=csv.QUOTE_MINIMAL if self._quote else csv.QUOTE_NONE,
            escapechar=self._escape,
            strict=True,
        )

    def fields(self, row: list[str]) -> list[str | None]:
        """Return the fields of a parsed row, None for those that are null."""
        if not self._escape:
            return [*row]
        return [None if field == _NULL else field.replace(_NULL, f"{self._escape}N") for field in row]

    def _rewritten(self, lines: Iterator[str], delimiter: str) -> Iterator[str]:
        escape = str(self._escape)
        kept = {self._quote, escape, delimiter, "\r", "\n"}
        pair = re.compile(f"{re.escape(escape)}(\r\n|.)", re.DOTALL)

        def rewrite(found: re.Match[str]) -> str:
            char = found[1]
            if char in kept:
                return found[0]
            if char == "\r\n":
                return f"{escape}\r{escape}\n"
            if char == "N":
                return _NULL
            if not self._quote and char in _CONTROLS:
                return escape + _CONTROLS[char]
            return escape + escape + char

        return (pair.sub(rewrite, line) if escape in line else line for line in lines)
