"""Read the rows of text files (text, JSON, CSV), which are in UTF-8."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator, Sequence
from typing import IO, ClassVar, cast

from tokenloom.errors import BadRow
from tokenloom.tasks.sources.base import FileRange, PartitionRange, cut_evenly, locate_runs
from tokenloom.tasks.sources.files.compressed import compression, open_decompressed
from tokenloom.tasks.sources.files.opening import announce, input_bytes
from tokenloom.tasks.sources.rows.decoding import REPLACE
from tokenloom.tasks.sources.rows.records import RawRow, RecordReader

_READ_BYTES = 2**18  # larger blocks take 1.6 times as long, since their lines leave the processor's cache
_NEAR_BYTES = 2**16  # between rows that are read together: that is faster than opening the file for each
_MARKS = {  # longer marks first
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


class TextFileReader(RecordReader):
    """The shared half of a reader of text files; a kind adds the same as to RecordReader.

    Args:
        options: see SourceReader.
        fields: see RecordReader.
    """

    is_any_text: ClassVar[bool] = False  # whether a file is still of this kind after its bad bytes are replaced

    def is_cut(self, url: str) -> bool:
        """Return whether a file is cut into ranges of bytes; another one is one partition."""
        return False

    def partitions(self, url: str) -> list[PartitionRange]:
        """See SourceReader.partitions; `start` and `end` count bytes of the file."""
        compression(url)  # raises for one that is not supported
        size = input_bytes(url)
        if self.is_cut(url):
            with open_decompressed(url) as file:
                if not self.utf16_row(url, file):  # such a file is one bad row
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

    def utf16_row(self, url: str, file: IO[bytes]) -> BadRow | None:
        """Return a whole file with the byte order mark of UTF-16 or UTF-32 as one bad row, None for any other file.

        Args:
            url: the file's path or URL.
            file: open at its start; it stays there.
        """
        if file.seekable():
            head = file.read(4)
            file.seek(0)
        else:
            head = cast(io.BufferedReader, file).peek(4)[:4]
        found = next((name for mark, name in _MARKS.items() if head.startswith(mark)), None)
        if not found or (self.fields.decoding.replaces and self.is_any_text):
            return None
        message = f"{url}: its first bytes are those of {found}, not of UTF-8; iconv -f {found} -t UTF-8 converts it"
        return BadRow(message, 0, "invalid_utf8", option=REPLACE if self.is_any_text else "")
