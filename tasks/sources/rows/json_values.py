"""Parse JSON: a single value, or the values of a large array one after the other.

Both use Python's own parser, so a value means the same in JSON lines and in an array. (ijson 3.6 silently reads an
escaped lone surrogate as "?"; docs/project/decisions.md.)
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import IO, Any

from tokenloom.errors import BadRow, InputError, message_of

OTHER_BYTES = 2**22  # what a row may hold beside its document, whose escapes may double it
_READ_BYTES, _HEAD_BYTES = 2**20, 2**16
_ESCAPE_CHARS = 32  # an error this close to the end of the buffer may only mean that the rest is not read yet
_DECODER = json.JSONDecoder()


def parse_json(place: str, row: int, text: str) -> Any:
    """Return the JSON value in `text`; raises BadRow.

    Args:
        place: how a message names the row.
        row: its number.
        text: one JSON value.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise BadRow(f"{place}: JSON nested too deep to be read; repair it", row, "invalid_json") from error
    except json.JSONDecodeError as error:  # its own message counts lines from the row's start, not the file's
        what = f"{error.msg}: character {error.pos + 1} of the row"
        raise BadRow(f"{place}: not valid JSON: {what}; repair it", row, "invalid_json") from error
    except ValueError as error:  # an integer of more than 4,300 digits
        raise BadRow(f"{place}: not valid JSON: {message_of(error)}; repair it", row, "invalid_json") from error


def starts_array(file: IO[bytes]) -> bool:
    """Return whether a file begins with an array, after white space; reads the first bytes of the file."""
    start = file.read(_HEAD_BYTES).removeprefix(codecs.BOM_UTF8).lstrip()
    return start.startswith(b"[")


def array_values(file: IO[bytes], url: str, max_bytes: int) -> Iterator[tuple[Any, int, int]]:
    """Yield each value of a JSON array, its length in characters and its line, with little more than it in memory.

    Bytes that are not UTF-8 become lone surrogates (PEP 383).

    Args:
        file: open at its start.
        url: for messages.
        max_bytes: a longer value is an error.

    Raises InputError for an invalid array, since the start of the next value is unknown then.
    """
    window = _Window(file, url, max_bytes)
    window.consume("[")
    if window.peek() == "]":
        window.consume("]")
    else:
        while True:
            yield window.value()
            if window.peek() == "]":
                window.consume("]")
                break
            window.consume(",")
    if window.peek():
        raise window.error("text after the end of the array")


class _Window:
    """The part of the file that is being parsed, as text."""

    def __init__(self, file: IO[bytes], url: str, max_bytes: int) -> None:
        self._file, self._url, self._max_bytes = file, url, max_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
        self._text, self._at, self._count = "", 0, 0
        self._line, self._line_at = 1, 0  # the line of a position of the text
        self._is_end = False

    def _line_of(self, at: int) -> int:
        """Return the line of a position that is not before the last one that was asked for."""
        self._line, self._line_at = self._line + self._text.count("\n", self._line_at, at), at
        return self._line

    def error(self, what: str, at: int | None = None) -> InputError:
        """Return the error to raise for what is at a position of the text, by default the current one."""
        line = self._line_of(self._at if at is None else at)
        place = f"{self._url}, line {line}, value {self._count} of its JSON array"
        return InputError(f"{place}: {what}; repair the file or leave it out")

    def _fill(self, num_bytes: int = _READ_BYTES) -> bool:
        """Read more of the file; return False at its end."""
        data = self._file.read(num_bytes)
        self._is_end = not data
        self._line_of(self._at)
        self._text = self._text[self._at :] + self._decoder.decode(data, final=self._is_end)
        self._at = self._line_at = 0
        return not self._is_end

    def peek(self) -> str:
        """Return the next character that is not white space, "" at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in " \t\r\n":
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._fill():
                return ""

    def consume(self, character: str) -> None:
        """Consume a character; raises InputError if another comes next."""
        if (found := self.peek()) != character:
            raise self.error(f"{character!r} is missing" + (f" before {found!r}" if found else " at its end"))
        self._at += 1

    def value(self) -> tuple[Any, int, int]:
        """Return the next value, its length in characters and its line."""
        self.peek()
        wanted = _READ_BYTES
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except RecursionError as error:
                raise self.error("JSON nested too deep to be read") from error
            except json.JSONDecodeError as error:
                may_be_cut = error.msg.startswith("Unterminated") or error.pos + _ESCAPE_CHARS >= len(self._text)
                if self._is_end or not may_be_cut:
                    raise self.error(f"not valid JSON: {error.msg}", error.pos) from error
            except ValueError as error:  # an integer of more than 4,300 digits
                raise self.error(f"not valid JSON: {message_of(error)}") from error
            else:
                if end < len(self._text) or self._is_end:  # otherwise the rest of a number may follow
                    num_chars, line, self._at = end - self._at, self._line_of(self._at), end
                    self._count += 1
                    return value, num_chars, line
            if len(self._text) - self._at > self._max_bytes:
                raise self.error(f"more than {self._max_bytes:,} bytes; raise documents.max_bytes")
            self._fill(wanted)
            wanted *= 2  # a long value is parsed again only a few times
