"""Text files in UTF-8, plain or compressed: JSON lines, JSON arrays of objects, and texts.

`row` is the byte offset of a line or text in the decompressed file; in a JSON array, the position of the object. A
plain file is cut into ranges of bytes, and a range owns the rows that start in it. Another file is one partition, read
as a stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import IO, Any

from tokenloom.errors import BadRow
from tokenloom.tasks.sources.base import FileRange, Options, PartitionRange, cut_evenly, locate_runs
from tokenloom.tasks.sources.files import announce, compression, input_bytes, open_decompressed
from tokenloom.tasks.sources.reader import RawRow, RecordReader
from tokenloom.tasks.sources.values import ArrayValue, array_values, parse_json, starts_array

OTHER_BYTES = 2**22  # what a row of JSON may hold beside its document, whose escapes may double it
_BOM = b"\xef\xbb\xbf"
_READ_BYTES = 2**18  # larger blocks take 1.6 times as long, since their lines leave the processor's cache
_NEAR_BYTES = 2**16  # between rows that are read together: that is faster than opening the file for each


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

    def pieces(
        self, url: str, file: IO[bytes], separator: str, max_bytes: int, start: int, end: int | None
    ) -> Iterator[RawRow]:
        """Yield the pieces between separators, numbered by where they begin; one that is too large is bad.

        Args:
            url: the file's path or URL.
            file: open at its start.
            separator: between two pieces.
            max_bytes: the largest length of a piece.
            start: pieces that begin before it are left out.
            end: those that begin there or later, too; None for a file that is not cut.
        """
        mark = separator.encode()
        before = max(0, start - len(mark))
        if end is not None:
            announce(file, [(before, end)])
            file.seek(before)
        return self._split(url, file, mark, max_bytes, before, end, is_inside=start > 0)

    def _split(
        self,
        url: str,
        file: IO[bytes],
        mark: bytes,
        max_bytes: int,
        offset: int,
        end: int | None,
        is_inside: bool = False,
    ) -> Iterator[RawRow]:
        """Yield the pieces of a stream that begin before `end`; without the first if `offset` is inside of a piece."""
        buffer, dropped, overlap = bytearray(), 0, len(mark) - 1
        while data := file.read(_READ_BYTES):
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
                        is_large = num_bytes > max_bytes
                        yield RawRow(offset, self.too_large(url, offset, max_bytes) if is_large else piece, num_bytes)
                    offset, dropped, is_inside = offset + num_bytes + len(mark), 0, False
            if is_inside and end is not None and offset + dropped + len(buffer) > end:
                return
            if len(buffer) > max_bytes + len(mark):
                if not (self._skips or is_inside):
                    break
                dropped += len(buffer) - overlap
                del buffer[: len(buffer) - overlap]  # all but what may begin a separator
        if not is_inside and (end is None or offset < end):
            num_bytes = dropped + len(buffer)
            is_large = num_bytes > max_bytes
            yield RawRow(offset, self.too_large(url, offset, max_bytes) if is_large else bytes(buffer), num_bytes)


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
                self._arrays[url] = starts_array(file)
        return self._arrays[url]

    def is_cut(self, url: str) -> bool:
        """See TextFileReader.is_cut."""
        return compression(url) is None and not self._is_array(url)

    def raw_rows(self, url: str, start: int, end: int) -> Iterator[RawRow]:
        """See RecordReader.raw_rows; `start` and `end` are ignored for a file that is one partition."""
        is_array = self._is_array(url)  # before the file is opened: a shared file has one position
        with open_decompressed(url) as file:
            if is_array:
                values = array_values(file, url, self._max_line_bytes)
                for row, value in enumerate(values):
                    yield RawRow(row, value, len(value.text))
                return
            last = end if self.is_cut(url) else None
            for raw in self.pieces(url, file, "\n", self._max_line_bytes, start, last):
                if raw.row == 0 and isinstance(raw.value, bytes):
                    raw = raw._replace(value=raw.value.removeprefix(_BOM))
                # A blank line is not a row.
                if isinstance(raw.value, BadRow) or (raw.value and not raw.value.isspace()):
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
                for raw in self.pieces(url, file, self._separator, self._max_bytes, start, last):
                    if isinstance(raw.value, BadRow):
                        yield raw
                    elif text := raw.value.strip(b"\r\n"):
                        yield raw._replace(value=text)
            else:
                data = file.read(self._max_bytes + 1)
                is_large = len(data) > self._max_bytes
                yield RawRow(0, self.too_large(url, 0, self._max_bytes) if is_large else data, len(data))

    def place(self, url: str, row: int) -> str:
        """See RecordReader.place."""
        return f"{url}, document at byte {row}" if self._separator else url

    def parse(self, raw: bytes) -> str:
        """See RecordReader.parse."""
        return self.columns.decoding.decode(raw)
