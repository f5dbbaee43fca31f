"""Text files, plain or compressed: a file is one document, or several with a separator between them.

`row` is 0; with a separator, the byte offset in the decompressed file at which the document begins. A document is then
the text between two separators without the line ends around it; an empty one is not a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO, Any

from tokenloom.tasks.sources.base import FileRange, Options, PartitionRange, cut_evenly
from tokenloom.tasks.sources.files.compressed import compression, open_decompressed
from tokenloom.tasks.sources.files.opening import input_bytes
from tokenloom.tasks.sources.rows.fields import Fields
from tokenloom.tasks.sources.rows.records import RawRow
from tokenloom.tasks.sources.rows.text_files import TextFileReader

_READ_BYTES = 2**20


class Reader(TextFileReader):
    """Reads text files.

    Args:
        options: see SourceReader; `separator` may be None.
    """

    is_any_text = True

    def __init__(self, options: Options) -> None:
        super().__init__(options, Fields({**options, "text": None}))
        self._max_bytes = int(options["max_bytes"])
        self._separator = str(options.get("separator") or "")
        # Where a separator that overlaps itself is found ("\n\n" in "\n\n\n") depends on where the search begins, so a
        # file with such a separator is not cut.
        self._overlaps_itself = any(
            self._separator.startswith(self._separator[i:]) for i in range(1, len(self._separator))
        )

    def partitions(self, url: str) -> list[PartitionRange]:
        """See SourceReader.partitions; `start` and `end` count bytes of the file."""
        size = input_bytes(url)
        if not self._is_cut(url):
            return [PartitionRange(0, size, size, None if self._separator else 1)]
        parts = cut_evenly(size, size)
        return parts if len(parts) < 2 or self._is_readable(url) else [PartitionRange(0, size, size, None)]

    def _is_cut(self, url: str) -> bool:
        can_cut = bool(self._separator) and not self._overlaps_itself and compression(url) is None
        return can_cut and self._searches_bytes(url)

    def _searches_bytes(self, url: str) -> bool:
        """Return whether the separator is searched in the bytes of the file, not in its text as UTF-8."""
        if not self._encodings:
            return True
        return self.keeps_bytes(url) and _encoded(self._separator, self.encoding_of(url)) is not None

    def _is_readable(self, url: str) -> bool:
        with open_decompressed(url) as file:
            return self.contradiction(url, file) is None

    def raw_rows(self, url: str, start: int, end: int) -> Iterator[RawRow]:
        """See RecordReader.raw_rows."""
        with open_decompressed(url) as file:
            if bad := self.contradiction(url, file):
                yield RawRow(0, bad, 0)
            elif self._separator:
                yield from self._separated(url, file, start, end)
            else:
                data = self.as_utf8(url, file).read(self._max_bytes + 1)
                is_large = len(data) > self._max_bytes
                yield RawRow(0, self.too_large(url, 0, self._max_bytes) if is_large else data, len(data))

    def _separated(self, url: str, file: IO[bytes], start: int, end: int) -> Iterator[RawRow]:
        if not self._searches_bytes(url):
            pieces = _Pieces(self.as_utf8(url, file), self._separator.encode(), self._max_bytes, 0, self._skips)
            return self._documents(url, pieces, None)
        separator, is_cut = self._separator.encode(self.encoding_of(url)), self._is_cut(url)
        before = max(0, start - len(separator)) if is_cut else 0
        if before:
            file.seek(before)
        pieces = _Pieces(file, separator, self._max_bytes, before, self._skips)
        if is_cut and start > 0:
            pieces.next_piece(end)  # ends where the first document of this range begins
        return self.rows_as_utf8(url, self._documents(url, pieces, end if is_cut else None))

    def _documents(self, url: str, pieces: _Pieces, end: int | None) -> Iterator[RawRow]:
        while not pieces.is_end and (end is None or pieces.offset < end):
            offset = pieces.offset
            piece, num_bytes = pieces.next_piece()
            if piece is None:
                yield RawRow(offset, self.too_large(url, offset, self._max_bytes), num_bytes)
            elif text := piece.strip(b"\r\n"):
                yield RawRow(offset, text, num_bytes)

    def place(self, url: str, row: int) -> str:
        """See RecordReader.place."""
        if not self._separator:
            return url
        return f"{url}, document at byte {row}" + ("" if self._searches_bytes(url) else " of its UTF-8")

    def parse(self, place: str, row: int, raw: Any) -> Any:
        """See RecordReader.parse."""
        return self.decode(place, row, raw)

    def locate(self, url: str, rows: Sequence[int]) -> list[FileRange]:
        """See SourceReader.locate: one document for each row, or the whole file if it is not cut."""
        return [FileRange(row, row + 1) for row in rows] if self._is_cut(url) else [FileRange(0, input_bytes(url))]


def _encoded(text: str, encoding: str) -> bytes | None:
    """Return a text in an encoding, None if the encoding lacks a character."""
    try:
        return text.encode(encoding)
    except UnicodeError:
        return None


class _Pieces:
    """The pieces of a stream between separators; `offset` is where the next one begins.

    Args:
        file: the stream.
        separator: between two pieces.
        max_bytes: the largest length of a piece.
        offset: the position in the file.
        skips: whether to skip a piece that is too large; otherwise it is the last one.
    """

    def __init__(self, file: IO[bytes], separator: bytes, max_bytes: int, offset: int, skips: bool) -> None:
        self._file, self._separator, self._max_bytes, self._skips = file, separator, max_bytes, skips
        self._buffer = bytearray()
        self.offset = offset
        self.is_end = False

    def next_piece(self, before: int | None = None) -> tuple[bytes | None, int]:
        """Return the bytes up to the next separator, None if they are more than max_bytes, and their number.

        With `before`, the search ends there, since pieces that begin later are not wanted.
        """
        searched = dropped = 0
        while (at := self._buffer.find(self._separator, searched)) < 0:
            if len(self._buffer) > self._max_bytes + len(self._separator):
                if before is None and not self._skips:
                    self.is_end = True
                    return None, len(self._buffer)
                # Keep only bytes that may begin a separator.
                excess = len(self._buffer) - len(self._separator) + 1
                del self._buffer[:excess]
                dropped += excess
            data = self._file.read(_READ_BYTES)
            searched = max(0, len(self._buffer) - len(self._separator) + 1)
            if not data or (before is not None and self.offset + dropped + len(self._buffer) > before):
                self.is_end = True
                at = len(self._buffer)
                break
            self._buffer += data
        num_bytes = dropped + at
        piece = bytes(self._buffer[:at]) if not dropped and at <= self._max_bytes else None
        del self._buffer[: at + len(self._separator)]
        self.offset += num_bytes + len(self._separator)
        return piece, num_bytes
