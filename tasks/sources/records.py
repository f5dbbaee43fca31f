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
from typing import Any

from tokenloom.errors import InputError, message_of
from tokenloom.tasks.sources.base import REPAIR, BadValue, FileRange, Options, PartitionRange, cut_evenly, locate_runs
from tokenloom.tasks.sources.files import compression, input_bytes, is_local, local_path, open_decompressed, open_input
from tokenloom.tasks.sources.lines import TextFileReader
from tokenloom.tasks.sources.listing import FoundFile, LeaveOut, find_files
from tokenloom.tasks.sources.reader import RawRow, RecordReader, sized_row
from tokenloom.tasks.sources.values import parse_json
from tokenloom.wording import shown_bytes

OTHER_BYTES = 2**22  # most bytes of other keys in a row of JSON; escapes may double its document
_HEAD_BYTES = 2**16
_MAX_ARRAY_BYTES = 100_000_000  # its text and values take three to nine times as much memory
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
                data = file.read(_MAX_ARRAY_BYTES + 1)
                values, num_bytes = _parse_array(url, data), len(data)
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
