r"""Kinds that are read row by row: JSON lines and arrays, texts, CSV (RFC 4180, or another dialect), and ArrayRecord.

Text files are in UTF-8, plain or compressed. `row` is the byte offset of a line or text in the decompressed file; in a
JSON array the position of the value, in ArrayRecord the number of the record, in CSV that of the row after the header,
or in a file without one. A plain file of lines, or of texts with a separator, is cut into ranges of bytes, and a range
owns the rows that start in it. Another text file is one partition: a quoted field of CSV may contain a line end.

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

import codecs
import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain, dropwhile
from typing import TYPE_CHECKING, Any

from tokenloom.errors import InputError, message_of
from tokenloom.spec.syntax import WHOLE_ROW, columns_of
from tokenloom.tasks.sources.base import REPAIR, BadValue, FileRange, Options, PartitionRange, cut_evenly, locate_runs
from tokenloom.tasks.sources.files import (
    compression,
    input_bytes,
    is_local,
    local_path,
    open_decompressed,
    open_input,
)
from tokenloom.tasks.sources.listing import FoundFile, LeaveOut, find_files
from tokenloom.tasks.sources.reader import RawRow, RecordReader, TextFileReader, sized_row
from tokenloom.tasks.sources.values import column_error, parse_json
from tokenloom.wording import counted, shown_bytes

if TYPE_CHECKING:
    import _csv

_MAX_FIELD = 64_000_000  # characters; the parser takes about 12 bytes for each
_ADVICE = r'repair the file, set delimiter, or set escape: "\\" if a backslash stands before quotes in a field'
_NULL = "\udfff"  # no text holds it: bytes that can't be decoded become U+DC80 to U+DCFF
_CONTROLS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
OTHER_BYTES = 2**22  # most bytes of other keys in a row of JSON; escapes may double its document
_HEAD_BYTES = 2**16
_MAX_ARRAY_BYTES = 100_000_000  # its text and values take three to nine times as much memory
_RANDOM_ACCESS = "readahead_buffer_size:0,max_parallelism:0"


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
        keys = ("id", "text", "tools") if options.get("messages") == WHOLE_ROW else ("id", "text", "messages", "tools")
        # column -> the key of the spec that names it
        self._needed = dict.fromkeys(columns_of(self.columns.filter) if self.columns.filter else (), "filter")
        self._needed |= {options[key]: key for key in keys if options.get(key) is not None}
        self._delimiter = str(options["delimiter"])
        self._quote = str(options.get("quote", '"'))
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
        names = self._names_given
        check = "Check columns"
        if self._has_header:
            blank = dropwhile(lambda row: len(row) == 1 and not row[0].strip(), rows)
            names = next(blank, [])
            check = "Set header: false if this is a row of data, check delimiter"
        elif not names:
            if (first := next(rows, None)) is None:
                return [], rows
            names = [str(position) for position in range(len(first))]
            check = "Check delimiter"
            rows = chain([first], rows)
        for column, key in self._needed.items():
            if names.count(column) != 1 and (column in names or column not in self.columns.path_columns):
                raise column_error(url, key, column, names, check)
        return names, rows

    def parse(self, raw: dict[str, Any]) -> dict[str, Any]:
        """See RecordReader.parse."""
        return raw


class JsonReader(TextFileReader):
    """Reads JSON lines and JSON arrays.

    Args:
        options: see SourceReader; `text`, `id` and the columns of `filter` are keys, dotted for nested objects.
    """

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._arrays: dict[str, bool] = {}
        # A line holds its document, perhaps with escapes, and other keys. Far more than that is not a line.
        self._max_line_bytes = 2 * int(options["max_bytes"]) + OTHER_BYTES

    def _is_array(self, url: str) -> bool:
        if url not in self._arrays:
            with open_decompressed(url) as file:
                self._arrays[url] = file.read(_HEAD_BYTES).removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")
        return self._arrays[url]

    def is_cut(self, url: str) -> bool:
        """See TextFileReader.is_cut."""
        return compression(url) is None and not self._is_array(url)

    def raw_rows(self, url: str, start: int, end: int) -> Iterator[RawRow]:
        """See RecordReader.raw_rows; `start` and `end` are ignored for a file that is one partition."""
        is_array = self._is_array(url)  # before the file is opened: a shared file has one position
        with open_decompressed(url) as file:
            if is_array:
                data = file.read(_MAX_ARRAY_BYTES + 1)
                values = _parse_array(url, data)
                num_bytes = len(data)
                del data
                yield from (RawRow(row, value, num_bytes // len(values)) for row, value in enumerate(values))
                return
            last = end if self.is_cut(url) else None
            for raw in self.pieces(file, "\n", self._max_line_bytes, start, last):
                if raw.row == 0 and isinstance(raw.value, bytes):
                    raw = raw._replace(value=raw.value.removeprefix(codecs.BOM_UTF8))
                # A blank line is not a row.
                if isinstance(raw.value, BadValue) or (raw.value and not raw.value.isspace()):
                    yield raw

    def place(self, url: str, row: int) -> str:
        """See RecordReader.place."""
        if self._is_array(url):
            return f"{url}, value {row} of its JSON array"
        return f"{url}, line at byte {row}"

    def parse(self, raw: Any) -> Any:
        """See RecordReader.parse; the values of an array are parsed already."""
        return parse_json(self.columns.decoding.decode(raw)) if isinstance(raw, bytes) else raw


def _parse_array(url: str, data: bytes) -> list[Any]:
    """Return the values of a JSON array; bytes that are not UTF-8 become lone surrogates (PEP 383) in them."""
    if len(data) > _MAX_ARRAY_BYTES:
        limit = shown_bytes(_MAX_ARRAY_BYTES)
        raise InputError(f"{url}: a JSON array of more than {limit}; make JSON lines: jq -c '.[]' FILE > FILE.jsonl")
    try:
        values: list[Any] = json.loads(data.decode("utf-8-sig", "surrogateescape"))
        return values
    except (RecursionError, ValueError) as error:
        raise InputError(f"{url}: not a valid JSON array: {message_of(error)}; {REPAIR}") from error


class ArrayRecordReader(RecordReader):
    """Reads ArrayRecord files.

    Args:
        options: see SourceReader; `text` is None if a record is the text itself, or if there are `messages`.
    """

    def __init__(self, options: Options) -> None:
        super().__init__({"text": None, **options})
        self._is_json = options.get("text") is not None or options.get("messages") is not None
        max_bytes = int(options["max_bytes"])
        self._max_record_bytes = 2 * max_bytes + OTHER_BYTES if self._is_json else max_bytes

    def files(self, path: str, leave_out: LeaveOut | None = None) -> list[FoundFile]:
        """See SourceReader.files; raises InputError for a URL, since the library can't read one."""
        if not is_local(path):
            raise InputError(f"{path}: array_record reads only files on this machine; copy them, and set their path")
        return find_files(path, leave_out)

    def partitions(self, url: str) -> list[PartitionRange]:
        """See SourceReader.partitions; `start` and `end` count records."""
        size = input_bytes(url)
        with _open(url) as file:
            num_records = file.num_records()
        return cut_evenly(num_records, size, self.columns.partition_bytes, num_records)

    def raw_rows(self, url: str, start: int, end: int) -> Iterator[RawRow]:
        """See RecordReader.raw_rows; `start` and `end` count records."""
        with _open(url) as file:
            num_records = file.num_records()
            if end > num_records:
                raise InputError(f"{url}: {num_records} records, but {end} were planned; the file changed: build again")
            if start < end:
                file.seek(start)
            for row in range(start, end):
                record = _read(file, url, row)
                yield sized_row(row, record, len(record), self._max_record_bytes)

    def place(self, url: str, row: int) -> str:
        """See RecordReader.place."""
        return f"{url}, record {row}"

    def parse(self, raw: bytes) -> Any:
        """See RecordReader.parse."""
        text = self.columns.decoding.decode(raw)
        return parse_json(text) if self._is_json else text

    def locate(self, url: str, rows: Sequence[int]) -> list[FileRange]:
        """See SourceReader.locate: the runs of consecutive numbers in `rows`."""
        return locate_runs(rows)


@contextmanager
def _open(url: str) -> Iterator[Any]:
    """Open a file with the library, which reports a missing or foreign file only on request."""
    try:
        from array_record.python import array_record_module
    except ModuleNotFoundError as error:
        raise InputError(
            f"{url}: ArrayRecord files need a package that is not installed: pip install 'tokenloom[arrayrecord]'"
        ) from error
    with open_input(url):
        pass  # reports why a file can't be opened
    file = array_record_module.ArrayRecordReader(local_path(url), _RANDOM_ACCESS)
    if not file.ok():
        raise InputError(f"{url}: not a readable ArrayRecord file; {REPAIR}")
    try:
        yield file
    finally:
        with suppress(RuntimeError):  # reported by the read that failed
            file.close()


def _read(file: Any, url: str, row: int) -> bytes:
    try:
        record: bytes = file.read()
        return record
    except (RuntimeError, IndexError) as error:
        raise InputError(f"{url}, record {row}: can't be read: {message_of(error)}; {REPAIR}") from error
