"""The interface of every kind of source: its files, their partitions, and their rows in batches.

A RecordReader reads rows one at a time as Python values, such as JSON, and collects them into record batches with the
columns that the source names. Texts and ids are strings there. Conversations stay JSON text of the whole row: Arrow's
structs would reorder their keys, and add nulls.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa

from tokenloom.errors import BadRow, InputError
from tokenloom.spec.syntax import WHOLE_ROW, Comparison, Members, columns_of, holds
from tokenloom.tasks.sources.base import (
    BATCH_BYTES,
    BadValue,
    FileRange,
    Options,
    PartitionRange,
    RowBatch,
    Rows,
    cut_evenly,
    locate_runs,
)
from tokenloom.tasks.sources.columns import Columns
from tokenloom.tasks.sources.files import announce, compression, input_bytes, is_local, open_decompressed
from tokenloom.tasks.sources.filters import is_true
from tokenloom.tasks.sources.listing import FoundFile, LeaveOut, find_files
from tokenloom.tasks.sources.values import json_type, look_up, value_at

_ROW_BYTES, _BAD_ROW_BYTES = 100, 1000  # in memory, beside the text
_LINE_PLACE = re.compile(r"((?:(?!: |, line \d).)+), line at byte (\d+)")
_MAX_COUNTED_BYTES, _MAX_FETCHED_BYTES = 2**32, 2**26  # read again to count lines, of a local file and another one
READ_BYTES = 2**18  # larger blocks take 1.6 times as long, since their lines leave the processor's cache
_NEAR_BYTES = 2**16  # between rows that are read together: that is faster than opening the file for each


class SourceReader(ABC):
    """Reads the files of one source. Every error is an InputError that names the file and the row group, row or byte.

    A reader is made from its options: the fields of the source in the spec, and `max_bytes`, `on_error` and
    `encoding_errors` of its document rules. With `on_error: skip`, bad rows are in `Rows.bad`; otherwise the first is
    raised as a BadRow.

    Attributes:
        columns: takes the documents from the record batches of its files.
    """

    columns: Columns

    def files(self, path: str, leave_out: LeaveOut | None = None) -> list[FoundFile]:
        """Return the files that the source's `path` matches, in order, without those to leave out.

        `path` is "" for a source without one.
        """
        return find_files(path, leave_out)

    def place(self, url: str, row: int) -> str:
        """Return how a message names a row of a file."""
        return f"{url}, row {row}"

    def notes(self, url: str) -> list[str]:
        """Return warnings about how a file is read, one line each."""
        return []

    @abstractmethod
    def partitions(self, url: str) -> list[PartitionRange]:
        """Cut a file into partitions of about `columns.partition_bytes`; the cut depends only on it and the file."""

    @abstractmethod
    def batches(self, url: str, part: FileRange) -> Iterator[RowBatch]:
        """Yield the rows of a part in order, as record batches.

        Args:
            url: the file's path or URL.
            part: from `partitions` or `locate` of the same file.
        """

    def read(self, url: str, part: FileRange) -> Iterator[Rows]:
        """Yield the documents of a part in order, in batches of about BATCH_BYTES; arguments as `batches`."""
        place_of = partial(self.place, url)
        # `map` keeps no reference to a batch, which may be large; a loop would.
        for documents in map(partial(self.columns.rows, url=url, place_of=place_of), self.batches(url, part)):
            yield from documents

    @abstractmethod
    def locate(self, url: str, rows: Sequence[int]) -> list[FileRange]:
        """Return the parts to read for these rows (ascending), with as few other rows as possible."""


_Row = tuple[int, str | None, str | None, bool]  # its number, text and id, and whether the filter keeps it


class RawRow(NamedTuple):
    """A row as its kind reads it.

    Attributes:
        row: its number in the file.
        value: what `RecordReader.parse` takes, or a BadValue.
        num_bytes: about how much memory it takes.
    """

    row: int
    value: Any
    num_bytes: int


def sized_row(row: int, data: bytes, num_bytes: int, max_bytes: int) -> RawRow:
    """Return a row of `num_bytes`, a bad one if these are more than `max_bytes`."""
    if num_bytes <= max_bytes:
        return RawRow(row, data, num_bytes)
    problem = f"more than {max_bytes:,} bytes, too much for documents.max_bytes; raise that value"
    return RawRow(row, BadValue(problem, "too_large"), num_bytes)


class RecordReader(SourceReader):
    """The shared half of a reader of rows; a kind adds `raw_rows`, `parse` and its partitions.

    Args:
        options: see SourceReader; if `text` is None or ".", the row itself is its text, unless there are `messages`.
    """

    #: whether all values are text, as in CSV: a filter's numbers are compared with those they spell
    parses_numbers = False

    def __init__(self, options: Options) -> None:
        self.columns = Columns(options)
        self._skips = options.get("on_error") == "skip"
        self._has_conversations = options.get("messages") is not None
        self._text: str = WHOLE_ROW if self._has_conversations else options.get("text") or WHOLE_ROW
        id_key = self.columns.id
        tree = self.columns.filter
        self._keys = {*(columns_of(tree) if tree else ()), *(() if id_key is None else (id_key,))}
        self._missing: set[str] = set()  # those of them that no row of the partition that is read has had so far

    @abstractmethod
    def raw_rows(self, url: str, start: int, end: int) -> Iterator[RawRow]:
        """Yield the rows of a part."""

    @abstractmethod
    def parse(self, raw: Any) -> Any:
        """Return the row as text, or as a mapping of its fields; raises BadValue."""

    def json_text(self, raw: Any) -> str:
        """Return the row as JSON text, for conversations; raises BadValue."""
        return self.columns.decoding.decode(raw) if isinstance(raw, bytes) else json.dumps(self.parse(raw), default=str)

    def batches(self, url: str, part: FileRange) -> Iterator[RowBatch]:
        """See SourceReader.batches."""
        self._missing = set(self._keys)
        rows: list[_Row] = []
        bad: list[BadRow] = []
        batch_bytes = 0
        for row, raw, num_bytes in self.raw_rows(url, part.start, part.end):
            try:
                rows.append(self._row(row, raw))
            except BadValue as error:
                bad.append(error.at(self.place(url, row), row))
                batch_bytes += _BAD_ROW_BYTES
                if not self._skips:
                    break
            batch_bytes += num_bytes + _ROW_BYTES
            del raw  # may be large, and the batch has its text
            if batch_bytes >= BATCH_BYTES:
                yield self._taken(rows, bad)
                batch_bytes = 0
        yield self._taken(rows, bad)

    def _row(self, row: int, raw: Any) -> _Row:
        """Return what a batch has of a row; raises BadValue if it can't be used. A filtered row has nothing else."""
        if isinstance(raw, BadValue):
            raise raw
        value = self.parse(raw) if self._keys or not self._has_conversations else None
        conversation = self.json_text(raw) if self._has_conversations else None
        tree = self.columns.filter
        if tree is not None and not holds(tree, partial(self._is_true, value)):
            return row, None, None, False
        text = conversation if self._has_conversations else self._text_of(value)
        return row, text, None if self.columns.id is None else self._id_of(value, self.columns.id), True

    def _taken(self, rows: list[_Row], bad: list[BadRow]) -> RowBatch:
        """Return rows as a batch, and clear the lists."""
        numbers, texts, ids, kept = zip(*rows, strict=True) if rows else ((), (), (), ())
        columns = {self._text: pa.array(texts, pa.large_string())}
        if self.columns.id is not None:
            columns[self.columns.id] = pa.array(ids, pa.large_string())
        mask = None if self.columns.filter is None else np.array(kept, bool)
        missing_keys = tuple(sorted(self._missing))
        batch = RowBatch(pa.record_batch(columns), np.array(numbers, np.uint64), tuple(bad), 0, mask, missing_keys)
        rows.clear()
        bad.clear()
        return batch

    def _found(self, value: Any, key: str) -> tuple[bool, Any]:
        """Return whether a row, or the path of its file, has a key, and its value."""
        has_key, found = look_up(value, key)
        if not has_key and key in self.columns.path_columns:
            has_key = True
            found = self.columns.path_columns[key]
        if has_key:
            self._missing.discard(key)
        return has_key, found

    def _text_of(self, value: Any) -> str | None:
        """Return the text of a row, None if it is null; raises BadValue if the row has no text."""
        if isinstance(value, dict) and isinstance(text := value.get(self._text), str):  # most rows
            return self.columns.decoding.clean(text, "text")
        text = value
        if self._text != WHOLE_ROW:
            has_text, text = self._found(value, self._text)
            text = text if has_text else value_at(value, self._text, "text")
        if isinstance(text, list) and all(item is None or isinstance(item, str) for item in text):
            text = "\n".join(item for item in text if item is not None)
        if text is None or isinstance(text, str):
            return text and self.columns.decoding.clean(text, "text")
        problem = f"{self._text!r} is {json_type(text)}, not text; repair the row, set messages: for conversations"
        raise BadValue(problem, "not_text")

    def _id_of(self, value: Any, key: str) -> str | None:
        """Return the id of a row as text, None if it has none; raises BadValue."""
        _, found = self._found(value, key)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, str | int):
            raise BadValue(f"id {key!r} is {json_type(found)}, not a string or an integer; repair the row", "bad_id")
        return self.columns.decoding.clean(str(found), "id")

    def _is_true(self, value: Any, part: Comparison | Members) -> bool:
        is_of_path = part.column in self.columns.path_columns and not look_up(value, part.column)[0]
        return is_true(self._found(value, part.column)[1], part, parses_numbers=self.parses_numbers or is_of_path)


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
            return cut_evenly(size, size, self.columns.partition_bytes)
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


@contextmanager
def naming_source(name: str | None) -> Iterator[None]:
    """Set the source of an InputError raised in the block, unless an inner block has set it, and complete its place.

    `name` is None for files that no spec names yet.
    """
    try:
        yield
    except InputError as error:
        error.source = error.source or name
        error.args = (with_line(error.args[0]), *error.args[1:])
        raise


def with_line(message: str) -> str:
    """Return a message that begins with the place of a row, with the row's line in JSON and the URL of its file."""
    if found := _LINE_PLACE.match(message):
        url = found[1]
        at = int(found[2])
        with suppress(InputError, OSError):  # the file may be gone by now
            if at <= (_MAX_COUNTED_BYTES if is_local(url) else _MAX_FETCHED_BYTES):
                message = f"{url}, line {_line_at(url, at)} at byte {at}{message[found.end() :]}"
    return message


def _line_at(url: str, position: int) -> int:
    """Return the number of the line that begins at a byte, from 1."""
    with open_decompressed(url) as file:
        num_newlines = at = 0
        while data := file.read(min(READ_BYTES, position - at)):
            num_newlines += data.count(b"\n")
            at += len(data)
        return num_newlines + 1
