"""JSON values: one from its bytes, and those of a large array one after the other.

Both through Python's own parser, so that a value means the same in JSON lines and in an array. (ijson 3.6 reads an
escaped lone surrogate as "?", which loses it silently; docs/decisions.md.)
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import IO, Any

from tokenloom.errors import BadRow, InputError

_READ_BYTES, _HEAD_BYTES = 2**20, 2**16
_ESCAPE_CHARS = 32  # an error nearer to the end of what was read may only mean that the rest is missing
_DECODER = json.JSONDecoder()


def parse_json(place: str, row: int, text: str) -> Any:
    """Return the JSON value that `text` spells; raises BadRow.

    Args:
        place: how a message names the row.
        row: its number.
        text: one JSON value.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise BadRow(f"{place}: JSON nested too deep to be read; repair it", row, "invalid_json") from error
    except ValueError as error:
        raise BadRow(f"{place}: not valid JSON: {error}; repair it", row, "invalid_json") from error


def starts_array(file: IO[bytes]) -> bool:
    """Return whether the first character of a file, after white space, opens an array; moves on in the file."""
    start = file.read(_HEAD_BYTES).removeprefix(codecs.BOM_UTF8).lstrip()
    return start.startswith(b"[")


def array_values(file: IO[bytes], url: str, max_bytes: int) -> Iterator[tuple[Any, int]]:
    """Yield (value, its characters) of a JSON array, with little more than one value in memory.

    Bytes that are no UTF-8 come as lone surrogates (PEP 383).

    Args:
        file: open at its start.
        url: for messages.
        max_bytes: a value of more is an error.

    Raises InputError for what is no JSON array: where the next value would begin is not known then.
    """
    window = _Window(file, url, max_bytes)
    window.expect("[")
    if window.peek() == "]":
        window.expect("]")
    else:
        while True:
            yield window.value()
            if window.peek() == "]":
                window.expect("]")
                break
            window.expect(",")
    if window.peek():
        raise window.error("text after the end of the array")


class _Window:
    """The part of the file that is being parsed, as text."""

    def __init__(self, file: IO[bytes], url: str, max_bytes: int) -> None:
        self._file, self._url, self._max_bytes = file, url, max_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
        self._text, self._at, self._count = "", 0, 0
        self._is_end = False

    def error(self, what: str) -> InputError:
        return InputError(
            f"{self._url}, value {self._count} of its JSON array: {what}; repair the file or leave it out"
        )

    def _fill(self, num_bytes: int = _READ_BYTES) -> bool:
        """Read on; return whether there was more."""
        data = self._file.read(num_bytes)
        self._is_end = not data
        self._text = self._text[self._at :] + self._decoder.decode(data, final=self._is_end)
        self._at = 0
        return not self._is_end

    def peek(self) -> str:
        """Return the next character that is no white space, "" at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in " \t\r\n":
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._fill():
                return ""

    def expect(self, character: str) -> None:
        """Go over a character."""
        if (found := self.peek()) != character:
            raise self.error(f"{character!r} is missing" + (f" before {found!r}" if found else " at its end"))
        self._at += 1

    def value(self) -> tuple[Any, int]:
        """Return the next value and its characters."""
        self.peek()
        wanted = _READ_BYTES
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except RecursionError as error:
                raise self.error("JSON nested too deep to be read") from error
            except json.JSONDecodeError as error:
                may_go_on = error.msg.startswith("Unterminated") or error.pos + _ESCAPE_CHARS >= len(self._text)
                if self._is_end or not may_go_on:
                    raise self.error(f"not valid JSON: {error.msg}") from error
            except ValueError as error:  # an integer of more than 4,300 digits
                raise self.error(f"not valid JSON: {error}") from error
            else:
                if end < len(self._text) or self._is_end:  # else a number may go on
                    num_chars, self._at = end - self._at, end
                    self._count += 1
                    return value, num_chars
            if len(self._text) - self._at > self._max_bytes:
                raise self.error(f"more than {self._max_bytes:,} bytes; raise documents.max_bytes")
            self._fill(wanted)
            wanted *= 2  # so that a long value is parsed again only a few times
