"""ArrayRecord: a document is one record of UTF-8 text, or the text or conversation of the JSON in one record.

`row` is the number of the record; partitions are ranges of records. Records are read one at a time, without read-ahead:
5,000 small records and 8 records of 60 MB take 255 MB of memory, against 619 MB with the library's default, at the same
speed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from tokenloom.errors import InputError, message_of
from tokenloom.tasks.sources.base import REPAIR, FileRange, Options, PartitionRange, cut_evenly, locate_runs
from tokenloom.tasks.sources.files import input_bytes, is_local, local_path, open_input
from tokenloom.tasks.sources.lines import OTHER_BYTES
from tokenloom.tasks.sources.listing import FoundFile, LeaveOut, find_files
from tokenloom.tasks.sources.reader import RawRow, RecordReader
from tokenloom.tasks.sources.values import parse_json

_RANDOM_ACCESS = "readahead_buffer_size:0,max_parallelism:0"


class Reader(RecordReader):
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
                large = len(record) > self._max_record_bytes
                value = self.too_large(url, row, self._max_record_bytes) if large else record
                yield RawRow(row, value, len(record))

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
        try:
            file.close()
        except RuntimeError as error:
            raise InputError(f"{url}: not a readable ArrayRecord file: {message_of(error)}; {REPAIR}") from error
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
