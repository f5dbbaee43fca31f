"""Read the rows of text files (text, JSON, CSV) as UTF-8, whatever the encoding of the file.

A file in UTF-8, or in an encoding with one byte for each character that extends ASCII, is cut unchanged. Any other file
becomes a stream of UTF-8 and is one partition; offsets then count bytes of that UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import IO, ClassVar

from tokenloom.errors import BadRow
from tokenloom.tasks.sources.base import FileRange, Options, PartitionRange, cut_evenly
from tokenloom.tasks.sources.files.compressed import compression, open_decompressed
from tokenloom.tasks.sources.files.encodings import (
    UTF8,
    choose_encoding,
    first_bytes,
    keeps_ascii,
    mark_of,
    to_utf8,
    utf8_stream,
)
from tokenloom.tasks.sources.files.opening import announce, input_bytes
from tokenloom.tasks.sources.rows.decoding import REPLACE
from tokenloom.tasks.sources.rows.fields import Fields
from tokenloom.tasks.sources.rows.records import RawRow, RecordReader

_READ_BYTES = 2**18  # larger blocks take 1.6 times as long, since their lines leave the processor's cache
_NEED_MARK = {
    "utf-16": ("UTF-16", "UTF-32"),  # the mark of UTF-32 may also be that of UTF-16 and a NUL
    "utf-32": ("UTF-32",),
}


class TextFileReader(RecordReader):
    """The shared half of a reader of text files; a kind adds the same as to RecordReader.

    Args:
        options: see SourceReader; `encoding` is a list of Python's names, UTF-8 by default.
        fields: see RecordReader.
    """

    is_any_text: ClassVar[bool] = False  # whether a file is still of this kind after its bad bytes are replaced

    def __init__(self, options: Options, fields: Fields) -> None:
        super().__init__(options, fields)
        self._encodings: list[str] = options.get("encoding") or []
        self._chosen: dict[str, str] = {}

    def is_cut(self, url: str) -> bool:
        """Return whether a file is cut into ranges of bytes; another one is one partition."""
        return False

    def partitions(self, url: str) -> list[PartitionRange]:
        """See SourceReader.partitions; `start` and `end` count bytes of the file."""
        compression(url)  # raises for one that is not supported
        size = input_bytes(url)
        if self.is_cut(url):
            with open_decompressed(url) as file:
                if not self.contradiction(url, file):  # such a file is one bad row
                    return cut_evenly(size, size)
        return [PartitionRange(0, size, size, None)]

    def locate(self, url: str, rows: Sequence[int]) -> list[FileRange]:
        """See SourceReader.locate: the byte at which each row begins, or the whole file if it is one partition."""
        return [FileRange(row, row + 1) for row in rows] if self.is_cut(url) else [FileRange(0, input_bytes(url))]

    def encoding_of(self, url: str) -> str:
        """Return Python's name of the encoding to read a file in."""
        if not self._encodings:
            return UTF8
        if url not in self._chosen:
            self._chosen[url] = choose_encoding(url, self._encodings)
        return self._chosen[url]

    def keeps_bytes(self, url: str) -> bool:
        """Return whether newline bytes of the file are newlines of its text, so that the file can be cut."""
        return not self._encodings or keeps_ascii(self.encoding_of(url))

    def as_utf8(self, url: str, file: IO[bytes]) -> IO[bytes]:
        """Return a file, open at its start, as a stream of UTF-8."""
        return utf8_stream(file, url, self.encoding_of(url), replaces=self.fields.decoding.replaces)

    def searches_bytes(self, url: str, separator: str) -> bool:
        """Return whether a separator is searched in the bytes of the file, not in its text as UTF-8."""
        return self.keeps_bytes(url) and _encoded(separator, self.encoding_of(url)) is not None

    def pieces(
        self, url: str, file: IO[bytes], separator: str, max_bytes: int, start: int, end: int | None
    ) -> Iterator[RawRow]:
        """Yield the pieces between separators as UTF-8, numbered by where they begin; one that is too large is bad.

        Args:
            url: the file's path or URL.
            file: open at its start.
            separator: between two pieces.
            max_bytes: the largest length of a piece.
            start: pieces that begin before it are left out.
            end: those that begin there or later, too; None for a file that is not cut.
        """
        if not self.searches_bytes(url, separator):
            return self._split(url, self.as_utf8(url, file), separator.encode(), max_bytes, 0, None)
        mark = separator.encode(self.encoding_of(url))
        before = max(0, start - len(mark))
        if end is not None:
            announce(file, [(before, end)])
            file.seek(before)
        return self._as_utf8(url, self._split(url, file, mark, max_bytes, before, end, is_inside=start > 0))

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

    def _as_utf8(self, url: str, rows: Iterator[RawRow]) -> Iterator[RawRow]:
        """Return rows of bytes in the file's encoding as rows of UTF-8; bad rows stay as they are."""
        if (encoding := self.encoding_of(url)) == UTF8:
            return rows
        decode = partial(to_utf8, encoding=encoding, replaces=self.fields.decoding.replaces)
        return (raw if isinstance(raw.value, BadRow) else raw._replace(value=decode(raw.value)) for raw in rows)

    def contradiction(self, url: str, file: IO[bytes]) -> BadRow | None:
        """Return the bad row for a file whose byte order mark contradicts its encoding, else None.

        Such a file is one bad row.

        Args:
            url: the file's path or URL.
            file: open at its start; it stays there.
        """
        head, encoding = first_bytes(file), self.encoding_of(url)
        mark = mark_of(head)
        if head and encoding in _NEED_MARK and mark not in _NEED_MARK[encoding]:
            message = f"no byte order mark of {encoding} at its start; check encoding: {encoding}-le and -be need none"
            return BadRow(f"{url}: {message}", 0, "invalid_utf8")
        if (
            mark
            and not encoding.startswith(("utf-16", "utf-32"))
            and not (self.fields.decoding.replaces and self.is_any_text)
        ):
            message = f"{url}: its first bytes are those of {mark}, not of {encoding.upper()}"
            option = REPLACE if self.is_any_text else ""
            return BadRow(f"{message}; {self.fields.decoding.advice}", 0, "invalid_utf8", option=option)
        return None


def _encoded(text: str, encoding: str) -> bytes | None:
    """Return a text in an encoding, None if the encoding lacks a character."""
    try:
        return text.encode(encoding)
    except UnicodeError:
        return None
