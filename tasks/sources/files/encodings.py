"""Encodings of text files: choose a file's encoding, and read its bytes as UTF-8, in constant memory.

Bytes that the encoding can't decode become bytes that are not UTF-8 either. So the reader of the UTF-8 finds the bad
row, and skips or reports it as in any other file.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Sequence
from functools import lru_cache
from typing import IO, cast

from tokenloom.errors import InputError, message_of
from tokenloom.storage.work.fingerprints import remote_fingerprint, stamp
from tokenloom.tasks.sources.files.compressed import open_decompressed
from tokenloom.tasks.sources.files.opening import info_of, is_local, local_path

UTF8 = "utf-8"
_MARKS = {  # longer marks first
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_MARK_STARTS = {mark[:1] for mark in _MARKS}
_LONE = "\udcff"  # replaces what can't be decoded; it is invalid in UTF-8
_BAD = "tokenloom.bad"
_READ_BYTES, _BUFFER_BYTES = 2**20, 2**20


def _bad(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return _LONE, error.end


codecs.register_error(_BAD, _bad)


def first_bytes(file: IO[bytes]) -> bytes:
    """Return the first four bytes of a file that is open at its start; the file stays at its start."""
    if not file.seekable():
        return cast(io.BufferedReader, file).peek(4)[:4]
    head = file.read(4)
    file.seek(0)
    return head


def mark_of(head: bytes) -> str | None:
    """Return UTF-16 or UTF-32 if a file begins with the byte order mark of one, else None."""
    if head[:1] not in _MARK_STARTS:
        return None
    return next((name for mark, name in _MARKS.items() if head.startswith(mark)), None)


@lru_cache(maxsize=256)
def keeps_ascii(encoding: str) -> bool:
    """Return whether an encoding is UTF-8, or takes one byte for each character and extends ASCII.

    Then each newline byte is a newline of the text, so the file can be cut at newlines before it is decoded.
    """
    return encoding == UTF8 or all(_is_one_character(encoding, byte) for byte in range(256))


def _is_one_character(encoding: str, byte: int) -> bool:
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        text = decoder.decode(bytes([byte]))
    except UnicodeError:
        return byte >= 128  # the encoding has no character for this byte
    return len(text) == 1 and (byte >= 128 or text == chr(byte))


def choose_encoding(url: str, encodings: Sequence[str]) -> str:
    """Return the first of several encodings that decodes a whole file, or the first in the list if none does.

    A process reads a file for this only once, however many partitions the file has.

    Args:
        url: the file's path or URL.
        encodings: Python's names; a single name is returned without reading the file.
    """
    if len(encodings) < 2:
        return next(iter(encodings), UTF8)
    version = tuple(stamp(local_path(url))) if is_local(url) else remote_fingerprint(info_of(url), url)
    return _choose(url, version, tuple(encodings))


@lru_cache(maxsize=4096)
def _choose(url: str, version: object, encodings: tuple[str, ...]) -> str:
    return next((encoding for encoding in encodings if _decodes(url, encoding)), encodings[0])


def _decodes(url: str, encoding: str) -> bool:
    decoder = codecs.getincrementaldecoder(encoding)()
    with open_decompressed(url) as file:
        while data := file.read(_READ_BYTES):
            try:
                decoder.decode(data)
            except UnicodeError:
                return False
    try:
        decoder.decode(b"", final=True)
    except UnicodeError:
        return False
    return True


def to_utf8(data: bytes, encoding: str, *, replaces: bool) -> bytes:
    """Return bytes as UTF-8; bytes that can't be decoded become U+FFFD, or bytes that are not UTF-8.

    Args:
        data: in an encoding for which `keeps_ascii` is true.
        encoding: Python's name.
        replaces: whether they become U+FFFD.
    """
    if encoding == UTF8:
        return data
    return data.decode(encoding, "replace" if replaces else _BAD).encode(UTF8, "surrogatepass")


def utf8_stream(file: IO[bytes], url: str, encoding: str, *, replaces: bool) -> IO[bytes]:
    """Return a file, open at its start, as a stream of UTF-8; see to_utf8."""
    if encoding == UTF8:
        return file
    return cast(IO[bytes], io.BufferedReader(_Utf8(file, url, encoding, replaces), _BUFFER_BYTES))


class _Utf8(io.RawIOBase):
    """A file's text as UTF-8."""

    def __init__(self, file: IO[bytes], url: str, encoding: str, replaces: bool) -> None:
        self._file, self._url, self._encoding = file, url, encoding
        self._decoder = codecs.getincrementaldecoder(encoding)("replace" if replaces else _BAD)
        self._waiting = memoryview(b"")
        self._is_end = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill the buffer; returns 0 at the end."""
        while not self._waiting and not self._is_end:
            data = self._file.read(_READ_BYTES)
            self._is_end = not data
            try:
                text = self._decoder.decode(data, final=self._is_end)
            except UnicodeError as error:
                raise InputError(
                    f"{self._url}: can't be decoded as {self._encoding}: {message_of(error)}; check encoding, or "
                    "leave it out"
                ) from error
            self._waiting = memoryview(text.encode(UTF8, "surrogatepass"))
        count = min(len(buffer), len(self._waiting))
        buffer[:count] = self._waiting[:count]
        self._waiting = self._waiting[count:]
        return count
