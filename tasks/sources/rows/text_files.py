"""Kinds that are files of text (text, JSON, CSV): whatever encoding a file is in, its rows are read as UTF-8.

A file in UTF-8, or in an encoding of single bytes that holds ASCII, is cut as it lies on the disk. Of another one a
stream of UTF-8 is made, which is one partition; offsets in it count bytes of that UTF-8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any, ClassVar

from tokenloom.errors import BadRow
from tokenloom.tasks.sources.files.encodings import (
    UTF8,
    choose_encoding,
    first_bytes,
    keeps_ascii,
    mark_of,
    utf8_stream,
)
from tokenloom.tasks.sources.rows.fields import Fields, ways_out
from tokenloom.tasks.sources.rows.records import RecordReader

_NEED_MARK = {"utf-16": ("UTF-16", "UTF-32"), "utf-32": ("UTF-32",)}  # UTF-32's may be UTF-16's and a NUL


class TextFileReader(RecordReader):
    """The shared half of a reader of text files; what a kind gives is as in RecordReader.

    Args:
        options: see SourceReader; `encoding` is a list of Python's names, UTF-8 if it is not there.
        fields: see RecordReader.
    """

    is_any_text: ClassVar[bool] = False  # whether a file of replaced bytes is still one of the kind

    def __init__(self, options: Mapping[str, Any], fields: Fields) -> None:
        super().__init__(options, fields)
        self._encodings: list[str] = options.get("encoding") or []
        self._chosen: dict[str, str] = {}
        self._file_ways_out = ways_out(options, can_replace=self.is_any_text)

    def encoding_of(self, url: str) -> str:
        """Return Python's name of the encoding to read a file in."""
        if not self._encodings:
            return UTF8
        if url not in self._chosen:
            self._chosen[url] = choose_encoding(url, self._encodings)
        return self._chosen[url]

    def keeps_bytes(self, url: str) -> bool:
        """Return whether newlines of the file are newlines of its text, so that it can be cut as it is."""
        return not self._encodings or keeps_ascii(self.encoding_of(url))

    def as_utf8(self, url: str, file: IO[bytes]) -> IO[bytes]:
        """Return a file, open at its start, as a stream of UTF-8."""
        return utf8_stream(file, url, self.encoding_of(url), replaces=self._replaces)

    def contradiction(self, url: str, file: IO[bytes]) -> BadRow | None:
        """Return what is wrong with a file whose byte order mark contradicts the encoding that it is read in, or None.

        Such a file is one bad row.

        Args:
            url: of the file.
            file: open at its start, where it stays.
        """
        head, encoding = first_bytes(file), self.encoding_of(url)
        mark = mark_of(head)
        if head and encoding in _NEED_MARK and mark not in _NEED_MARK[encoding]:
            message = f"no byte order mark of {encoding} at its start; check encoding: {encoding}-le and -be need none"
            return BadRow(f"{url}: {message}", 0, "invalid_utf8")
        if mark and not encoding.startswith(("utf-16", "utf-32")) and not (self._replaces and self.is_any_text):
            message = f"{url}: its first bytes are those of {mark}, not of {encoding.upper()}"
            return BadRow(f"{message}; {self._file_ways_out}", 0, "invalid_utf8")
        return None
