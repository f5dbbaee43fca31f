"""Single values of rows: text from bytes, JSON from text, the value of a dotted key, and columns in the path of a file.

Such columns are those that Hive and Spark write: year=2021/lang=en/part-0.parquet. A file's own column of the same name
comes first. Values are text, and a filter's numbers are compared with the numbers that they spell, as in CSV.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import IO, Any, NamedTuple
from urllib.parse import unquote

from tokenloom.errors import InputError, message_of
from tokenloom.spec.row_filter import columns_of, parse_filter
from tokenloom.spec.values import WHOLE_ROW
from tokenloom.tasks.sources.base import BadValue, Options
from tokenloom.tasks.sources.column_names import json_type, shown_names

ROLES = {"role", "from"}  # each message of a conversation has one of these keys
REPLACE = "replace bad bytes (documents.encoding_errors: replace)"
_TEXT_FILES = ("text", "jsonl", "csv")
_SURROGATES = re.compile("[\ud800-\udfff]")
_LONE = re.compile("[\ud800-\udc7f\udd00-\udfff]")
OPTION = "path_columns"  # the option of a file that maps columns to values
_WINDOW_BYTES, _HEAD_BYTES = 2**20, 2**16
_ESCAPE_CHARS = 32  # an error this close to the end of the buffer may only mean that the rest is not read yet
_DECODER = json.JSONDecoder()
_NULL = "__HIVE_DEFAULT_PARTITION__"


class Decoding:
    """How a source decodes bytes.

    Args:
        options: see SourceReader.

    Attributes:
        replaces: whether what is not valid becomes U+FFFD.
    """

    def __init__(self, options: Options) -> None:
        self.replaces = options.get("encoding_errors") == "replace"
        self._advice = "repair the file"
        if options.get("kind") in _TEXT_FILES:
            self._advice += ", or convert it, for example with iconv -f CP1252 -t UTF-8"

    def decode(self, data: bytes) -> str:
        """Return UTF-8 as text; raises BadValue."""
        try:
            return data.decode("utf-8", "replace" if self.replaces else "strict")
        except UnicodeDecodeError as error:
            raise self._bad(f"invalid UTF-8 at byte {error.start}") from error

    def clean(self, text: str, what: str) -> str:
        """Return a text without lone surrogates, which UTF-8 can't encode; raises BadValue."""
        if text.isascii() or not _SURROGATES.search(text):
            return text
        if self.replaces:  # bytes that were not UTF-8 are surrogates, too (PEP 383)
            return _LONE.sub("\ufffd", text).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        raise self._bad(f"invalid UTF-8, or a lone surrogate, in its {what}")

    def _bad(self, problem: str) -> BadValue:
        return BadValue(f"{problem}; {self._advice}", "invalid_utf8", REPLACE)


def instead_of_text(key: str) -> str:
    """Return the next step where the `text` of a source is the key of conversations."""
    return f"set messages: {key} in place of text: {key}"


def parse_json(text: str) -> Any:
    """Return the JSON value in a text; raises BadValue."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise BadValue("JSON nested too deep to be read; repair it", "invalid_json") from error
    except json.JSONDecodeError as error:  # its own message counts lines from the row's start, not the file's
        problem = f"{error.msg}: character {error.pos + 1} of the row"
        raise BadValue(f"not valid JSON: {problem}; repair it", "invalid_json") from error
    except ValueError as error:  # an integer of more than 4,300 digits
        raise BadValue(f"not valid JSON: {message_of(error)}; repair it", "invalid_json") from error


class ArrayValue(NamedTuple):
    """A value of an array, its JSON text, and the line on which it begins."""

    value: Any
    text: str
    line: int


def starts_array(file: IO[bytes]) -> bool:
    """Return whether a file begins with an array, after white space; reads the first bytes of the file."""
    start = file.read(_HEAD_BYTES).removeprefix(codecs.BOM_UTF8).lstrip()
    return start.startswith(b"[")


def array_values(file: IO[bytes], url: str, max_bytes: int) -> Iterator[ArrayValue]:
    """Yield the values of a JSON array, with little more than one in memory.

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

    def _fill(self, num_bytes: int = _WINDOW_BYTES) -> bool:
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

    def value(self) -> ArrayValue:
        """Return the next value."""
        self.peek()
        wanted = _WINDOW_BYTES
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
                    text, line, self._at = self._text[self._at : end], self._line_of(self._at), end
                    self._count += 1
                    return ArrayValue(value, text, line)
            if len(self._text) - self._at > self._max_bytes:
                raise self.error(f"more than {self._max_bytes:,} bytes; raise documents.max_bytes")
            self._fill(wanted)
            wanted *= 2  # a long value is parsed again only a few times


def look_up(value: Any, key: str) -> tuple[bool, Any]:
    """Return whether a row has a dotted key, and its value; a key that itself contains the dots comes first."""
    if isinstance(value, dict) and key in value:
        return True, value[key]
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            return False, None
        value = value[part]
        if value is None:  # everything under a null is null, as in parquet
            return True, None
    return True, value


def pick(value: Any, key: str, option: str) -> Any:
    """Return the value of a dotted key of a row; raises BadValue if the row lacks it.

    Args:
        value: the row.
        key: the key.
        option: the option of the spec that names it, for messages.
    """
    has_key, found = look_up(value, key)
    if has_key:
        return found
    if isinstance(value, dict):
        keys = shown_names(value)
        raise BadValue(f"no key {key!r}; its keys are: {keys}. Set {option}: to one of them", "missing_key")
    step = f"set text: {WHOLE_ROW} if each row is a text" if isinstance(value, str) else "repair the row"
    if is_conversation(value):
        step = f"set messages: {WHOLE_ROW}, since the row is a conversation"
    raise BadValue(f"{json_type(value)} where an object with the key {key!r} is expected; {step}", "missing_key")


def is_conversation(value: object) -> bool:
    """Return whether a row's value is a list of messages, as chat datasets have them."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, dict) and ROLES & item.keys() for item in value)
    )


def path_columns(path: str, options: Options) -> dict[str, Any]:
    """Return the option with the columns of a path that a source names as filter, id or text; {} if there are none.

    They decide how the file is read, so the names of its spills cover them.

    Args:
        path: relative to the root of the source.
        options: those of the source; the files of a Hugging Face source, which has a `split`, are read by the rules of
            the package, which has no such columns.

    Raises InputError for a value that is not UTF-8 in its URL encoding.
    """
    named = {options.get("id"), options.get("text")}
    named.update(columns_of(parse_filter(options["filter"])) if options.get("filter") else [])
    columns: dict[str, str | None] = {}
    for folder in path.split("/")[:-1]:
        name, mark, value = folder.partition("=")
        if mark and (name := _decoded(name, path)) in named:
            columns[name] = None if value == _NULL else _decoded(value, path)
    return {OPTION: columns} if columns and "split" not in options else {}


def _decoded(text: str, path: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: {text!r} is not UTF-8 in its URL encoding; rename the folder") from error
