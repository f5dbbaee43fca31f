r"""Text files in UTF-8, plain or compressed: texts, and CSV (RFC 4180, or another dialect).

`row` is the byte offset of a text in the decompressed file; of CSV, the number of the row after the header, or in a
file without one. A plain file of texts with a separator is cut into ranges of bytes, and a range owns the rows that
start in it. Another file is one partition, read as a stream: a quoted field of CSV may contain a line end.

Delimiter, quote and escape of CSV may be those of MySQL, PostgreSQL and Spark. Python's parser drops the escape before
any character, which would turn Spark's `C:\new` into `C:new`. So each escape that means something else is rewritten
before the parser sees it:

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
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, dropwhile
from typing import IO, TYPE_CHECKING, Any

from tokenloom.errors import InputError, message_of
from tokenloom.spec.syntax import WHOLE_ROW, comparisons_of, parse_filter
from tokenloom.tasks.sources.base import BadValue, FileRange, Options, PartitionRange, cut_evenly, locate_runs
from tokenloom.tasks.sources.files import announce, compression, input_bytes, open_decompressed
from tokenloom.tasks.sources.reader import RawRow, RecordReader, sized_row
from tokenloom.tasks.sources.values import column_error
from tokenloom.wording import counted

if TYPE_CHECKING:
    import _csv

READ_BYTES = 2**18  # larger blocks take 1.6 times as long, since their lines leave the processor's cache
_NEAR_BYTES = 2**16  # between rows that are read together: that is faster than opening the file for each
_MAX_FIELD = 64_000_000  # characters; the parser takes about 12 bytes for each
_ADVICE = r'repair the file, set delimiter, or set escape: "\\" if a backslash stands before quotes in a field'
_NULL = "\udfff"  # no text holds it: bytes that can't be decoded become U+DC80 to U+DCFF
_CONTROLS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class TextFileReader(RecordReader):
    """The shared half of a reader of text files; a kind adds the same as to RecordReader.

    Args:
        options: see SourceReader.
    """

    def is_cut(self, url: str) -> bool:
        """Return whether a file is cut into ranges of bytes; another one is one partition."""
        return False

    def partitions(self, url: str) -> list[PartitionRange]:
        """See SourceReader.partitions; `start` and `end` count bytes of the file."""
        compression(url)  # raises for one that is not supported
        size = input_bytes(url)
        if self.is_cut(url):
            return cut_evenly(size, size)
        return [PartitionRange(0, size, size, None)]

    def locate(self, url: str, rows: Sequence[int]) -> list[FileRange]:
        """See SourceReader.locate: ranges in which rows begin, or the whole file if it is one partition."""
        return locate_runs(rows, _NEAR_BYTES) if self.is_cut(url) else [FileRange(0, input_bytes(url))]

    def pieces(self, file: IO[bytes], separator: str, max_bytes: int, start: int, end: int | None) -> Iterator[RawRow]:
        """Yield the pieces between separators, numbered by where they begin; one that is too large is bad.

        Args:
            file: open at its start.
            separator: between two pieces.
            max_bytes: the largest length of a piece.
            start: pieces that begin before it are left out.
            end: those that begin there or later, too; None for a file that is not cut.
        """
        mark = separator.encode()
        offset, is_inside = max(0, start - len(mark)), start > 0  # inside of a piece that begins before the part
        if end is not None:
            announce(file, [(offset, end)])
            file.seek(offset)
        buffer, dropped, overlap = bytearray(), 0, len(mark) - 1
        while data := file.read(READ_BYTES):
            searched = max(0, len(buffer) - overlap)
            buffer += data
            if buffer.find(mark, searched) >= 0:
                *pieces, rest = bytes(buffer).split(mark)
                buffer = bytearray(rest)
                for piece in pieces:
                    if end is not None and offset >= end:
                        return
                    num_bytes = dropped + len(piece)
                    if not is_inside:
                        yield sized_row(offset, piece, num_bytes, max_bytes)
                    offset, dropped, is_inside = offset + num_bytes + len(mark), 0, False
            if is_inside and end is not None and offset + dropped + len(buffer) > end:
                return
            if len(buffer) > max_bytes + len(mark):
                if not (self._skips or is_inside):
                    break
                dropped += len(buffer) - overlap
                del buffer[: len(buffer) - overlap]  # but for the last bytes, with which a separator may begin
        if not is_inside and (end is None or offset < end):
            yield sized_row(offset, bytes(buffer), dropped + len(buffer), max_bytes)


class TextReader(TextFileReader):
    """Reads text files: a file is one document, or several with a separator between them.

    With a separator, a document is the text between two of them without the line ends around it; an empty one is not a
    row.

    Args:
        options: see SourceReader; `separator` may be None.
    """

    def __init__(self, options: Options) -> None:
        super().__init__({**options, "text": None})
        self._max_bytes = int(options["max_bytes"])
        self._separator = str(options.get("separator") or "")
        # Where a separator that overlaps itself is found ("\n\n" in "\n\n\n") depends on where the search begins, so a
        # file with such a separator is not cut.
        self._overlaps_itself = any(
            self._separator.startswith(self._separator[i:]) for i in range(1, len(self._separator))
        )

    def partitions(self, url: str) -> list[PartitionRange]:
        """See SourceReader.partitions; `start` and `end` count bytes of the file."""
        parts = super().partitions(url)
        return parts if self._separator else [replace(part, num_rows=1) for part in parts]

    def is_cut(self, url: str) -> bool:
        """See TextFileReader.is_cut."""
        return bool(self._separator) and not self._overlaps_itself and compression(url) is None

    def raw_rows(self, url: str, start: int, end: int) -> Iterator[RawRow]:
        """See RecordReader.raw_rows."""
        with open_decompressed(url) as file:
            if self._separator:
                last = end if self.is_cut(url) else None
                for raw in self.pieces(file, self._separator, self._max_bytes, start, last):
                    if isinstance(raw.value, BadValue):
                        yield raw
                    elif text := raw.value.strip(b"\r\n"):
                        yield raw._replace(value=text)
            else:
                data = file.read(self._max_bytes + 1)
                yield sized_row(0, data, len(data), self._max_bytes)

    def place(self, url: str, row: int) -> str:
        """See RecordReader.place."""
        return f"{url}, document at byte {row}" if self._separator else url

    def parse(self, raw: bytes) -> str:
        """See RecordReader.parse."""
        return self.columns.decoding.decode(raw)


class CsvReader(TextFileReader):
    """Reads CSV files.

    Args:
        options: see SourceReader; and `delimiter`, `quote` ("" for none) and `escape` (None for none), one character
            each. Without a `header`, `columns` names the fields; without `columns`, a field's name is its position,
            from "0" on.
    """

    parses_numbers = True

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        compared = comparisons_of(parse_filter(options["filter"])) if options.get("filter") else []
        keys = ("id", "text", "tools") if options.get("messages") == WHOLE_ROW else ("id", "text", "messages", "tools")
        named = [("filter", one.column) for one in compared] + [(key, options.get(key)) for key in keys]
        # column -> the key of the spec that names it
        self._needed = {str(column): key for key, column in named if column is not None}
        self._delimiter, self._quote = str(options["delimiter"]), str(options.get("quote", '"'))
        self._escape: str | None = options.get("escape")
        self._has_header = bool(options.get("header", True))
        self._names_given: list[str] = options.get("columns") or []

    def raw_rows(self, url: str, start: int, end: int) -> Iterator[RawRow]:
        """See RecordReader.raw_rows."""
        csv.field_size_limit(max(csv.field_size_limit(), _MAX_FIELD))  # has no setting for a single reader
        with open_decompressed(url) as file:
            # Bytes that can't be decoded become lone surrogates (PEP 383).
            text = io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="")
            lines = self._parsed(self._lines(url, text))
            try:
                names, rows = self._named(url, (row for row in lines if row))  # a blank line is not a row
                for number, row in enumerate(rows):
                    fields: list[str | None] = [*row]
                    if self._escape:
                        fields = [None if one == _NULL else one.replace(_NULL, f"{self._escape}N") for one in row]
                    value: dict[str, str | None] | BadValue = dict(zip(names, fields, strict=False))
                    if len(row) != len(names):
                        problem = (
                            f"{counted(len(row), 'field')}, but the header, columns or the first row has {len(names)}"
                        )
                        value = BadValue(f"{problem}; repair the row, or name every field in columns", "fields")
                    yield RawRow(number, value, sum(map(len, row)))
            except csv.Error as error:
                raise InputError(
                    f"{url}, line {lines.line_num}: not valid CSV: {message_of(error)}; {_ADVICE}"
                ) from error
            finally:
                text.detach()

    def _lines(self, url: str, text: io.TextIOWrapper) -> Iterator[str]:
        while line := text.readline(_MAX_FIELD):
            if len(line) == _MAX_FIELD:
                raise InputError(f"{url}: a line of {_MAX_FIELD:,} characters or more; split it, or repair the file")
            yield line

    def _parsed(self, lines: Iterator[str]) -> _csv.Reader:
        """Return the parser of a file's lines."""
        return csv.reader(
            self._rewritten(lines, self._escape) if self._escape else lines,
            delimiter=self._delimiter,
            quotechar=self._quote or None,
            quoting=csv.QUOTE_MINIMAL if self._quote else csv.QUOTE_NONE,
            escapechar=self._escape,
            strict=True,
        )

    def _rewritten(self, lines: Iterator[str], escape: str) -> Iterator[str]:
        """Rewrite escapes for Python's parser, by the table above."""
        kept = {self._quote, escape, self._delimiter, "\r", "\n"}

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

        pair = re.compile(f"{re.escape(escape)}(\r\n|.)", re.DOTALL)
        return (pair.sub(rewrite, line) if escape in line else line for line in lines)

    def _named(self, url: str, rows: Iterator[list[str]]) -> tuple[list[str], Iterator[list[str]]]:
        """Return the names of the fields and the rows of data; raises InputError if a needed name is missing."""
        names, check = self._names_given, "Check columns"
        if self._has_header:
            blank = dropwhile(lambda row: len(row) == 1 and not row[0].strip(), rows)
            names, check = next(blank, []), "Set header: false if this is a row of data, check delimiter"
        elif not names:
            if (first := next(rows, None)) is None:
                return [], rows
            names, check = [str(position) for position in range(len(first))], "Check delimiter"
            rows = chain([first], rows)
        for column, key in self._needed.items():
            if names.count(column) != 1 and (column in names or column not in self.columns.path_columns):
                raise column_error(url, key, column, names, check)
        return names, rows

    def parse(self, raw: dict[str, Any]) -> dict[str, Any]:
        """See RecordReader.parse."""
        return raw
