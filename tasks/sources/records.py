"""JSON lines, JSON arrays of objects, and ArrayRecord: a row is text, or the text or conversation of JSON.

`row` is the byte offset of a line in the decompressed file; in a JSON array the position of the object, in ArrayRecord
the number of the record. Records of ArrayRecord are read one at a time, without read-ahead: 5,000 small records and 8
records of 60 MB take 255 MB of memory, against 619 MB with the library's default, at the same speed.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any, NamedTuple

from tokenloom.errors import InputError, message_of
from tokenloom.tasks.sources.base import REPAIR, BadValue, FileRange, Options, PartitionRange, cut_evenly, locate_runs
from tokenloom.tasks.sources.files import compression, input_bytes, is_local, local_path, open_decompressed, open_input
from tokenloom.tasks.sources.lines import TextFileReader
from tokenloom.tasks.sources.listing import FoundFile, LeaveOut, find_files
from tokenloom.tasks.sources.reader import RawRow, RecordReader, sized_row
from tokenloom.tasks.sources.values import parse_json

OTHER_BYTES = 2**22  # most bytes of other keys in a row of JSON; escapes may double its document
_WINDOW_BYTES, _HEAD_BYTES = 2**20, 2**16
_ESCAPE_CHARS = 32  # an error this close to the end of the buffer may only mean that the rest is not read yet
_DECODER = json.JSONDecoder()
_RANDOM_ACCESS = "readahead_buffer_size:0,max_parallelism:0"


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
                for row, value in enumerate(_JsonArray(file, url, self._max_line_bytes).values()):
                    yield RawRow(row, value, len(value.text))
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

    def parse(self, raw: bytes | ArrayValue) -> Any:
        """See RecordReader.parse; the values of an array are parsed already."""
        return raw.value if isinstance(raw, ArrayValue) else parse_json(self.columns.decoding.decode(raw))

    def json_text(self, raw: bytes | ArrayValue) -> str:
        """See RecordReader.json_text."""
        if isinstance(raw, ArrayValue):
            return self.columns.decoding.clean(raw.text, "conversation")
        return self.columns.decoding.decode(raw)


class ArrayValue(NamedTuple):
    """A value of an array, and its JSON text."""

    value: Any
    text: str


class _JsonArray:
    """The part of a JSON array that is being parsed, as text, with little more than one value in memory.

    Bytes that are not UTF-8 become lone surrogates (PEP 383).

    Args:
        file: open at its start.
        url: for messages.
        max_bytes: a longer value is an error.
    """

    def __init__(self, file: IO[bytes], url: str, max_bytes: int) -> None:
        self._file, self._url, self._max_bytes = file, url, max_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
        self._text, self._at, self._count = "", 0, 0
        self._line = 1  # on which the text begins
        self._is_end = False

    def values(self) -> Iterator[ArrayValue]:
        """Yield the values; raises InputError for an invalid array, since where the next value begins is unknown."""
        self._consume("[")
        while self._peek() != "]":
            if self._count:
                self._consume(",")
            yield self._value()
        self._consume("]")
        if self._peek():
            raise self._error("text after the end of the array")

    def _error(self, what: str, at: int | None = None) -> InputError:
        """Return the error for a position of the text, by default the current one."""
        line = self._line + self._text.count("\n", 0, self._at if at is None else at)
        place = f"{self._url}, line {line}, value {self._count} of its JSON array"
        return InputError(f"{place}: {what}; repair the file or leave it out")

    def _fill(self, num_bytes: int = _WINDOW_BYTES) -> bool:
        """Read more of the file; return False at its end."""
        data = self._file.read(num_bytes)
        self._is_end = not data
        self._line += self._text.count("\n", 0, self._at)
        self._text = self._text[self._at :] + self._decoder.decode(data, final=self._is_end)
        self._at = 0
        return not self._is_end

    def _peek(self) -> str:
        """Return the next character that is not white space, "" at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in " \t\r\n":
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._fill():
                return ""

    def _consume(self, character: str) -> None:
        """Consume a character; raises InputError if another comes next."""
        if (found := self._peek()) != character:
            raise self._error(f"{character!r} is missing" + (f" before {found!r}" if found else " at its end"))
        self._at += 1

    def _value(self) -> ArrayValue:
        """Return the next value."""
        self._peek()
        wanted = _WINDOW_BYTES
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except RecursionError as error:
                raise self._error("JSON nested too deep to be read") from error
            except json.JSONDecodeError as error:
                may_be_cut = error.msg.startswith("Unterminated") or error.pos + _ESCAPE_CHARS >= len(self._text)
                if self._is_end or not may_be_cut:
                    raise self._error(f"not valid JSON: {error.msg}", error.pos) from error
            except ValueError as error:  # an integer of more than 4,300 digits
                raise self._error(f"not valid JSON: {message_of(error)}") from error
            else:
                if end < len(self._text) or self._is_end:  # otherwise the rest of a number may follow
                    text, self._at = self._text[self._at : end], end
                    self._count += 1
                    return ArrayValue(value, text)
            if len(self._text) - self._at > self._max_bytes:
                raise self._error(f"more than {self._max_bytes:,} bytes; raise documents.max_bytes")
            self._fill(wanted)
            wanted *= 2  # a long value is parsed again only a few times


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
        _check_local(path)
        return find_files(path, leave_out)

    def partitions(self, url: str) -> list[PartitionRange]:
        """See SourceReader.partitions; `start` and `end` count records."""
        size = input_bytes(_check_local(url))
        with _open(url) as file:
            num_records = file.num_records()
        return cut_evenly(num_records, size, num_records)

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

    def json_text(self, raw: bytes) -> str:
        """See RecordReader.json_text."""
        return self.columns.decoding.decode(raw)

    def locate(self, url: str, rows: Sequence[int]) -> list[FileRange]:
        """See SourceReader.locate: the runs of consecutive numbers in `rows`."""
        return locate_runs(rows)


def _check_local(url: str) -> str:
    if not is_local(url):
        raise InputError(f"{url}: array_record reads only files on this machine; copy the files, and set their path")
    return url


@contextmanager
def _open(url: str) -> Iterator[Any]:
    """Open a file with the library, which reports a missing or foreign file only on request."""
    try:
        from array_record.python import array_record_module
    except ModuleNotFoundError as error:
        raise InputError(
            f"{url}: ArrayRecord files need a package that is not installed: pip install 'tokenloom[arrayrecord]'"
        ) from error
    with open_input(_check_local(url)):
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
