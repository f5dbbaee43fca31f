r"""The dialect of a CSV file: what delimits, quotes and escapes, as the writers of MySQL, PostgreSQL and Spark use it.

Python's parser drops the escape before any character, which would turn Spark's `C:\new` into `C:new`. So each escape
that means something else is rewritten before the parser sees it:

| escape and | means |
|---|---|
| the quote, escape, delimiter, or a line end | that character |
| N, as the whole field | null (MySQL, PostgreSQL) |
| b f n r t v, without quotes | the control character (PostgreSQL's COPY) |
| anything else | both characters (Spark) |
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tokenloom.tasks.sources.base import Options

if TYPE_CHECKING:
    from _csv import Reader

_NULL = "\udfff"  # no text holds it: bytes that can't be decoded become U+DC80 to U+DCFF
_CONTROLS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class Dialect:
    """How the fields of a CSV source are written.

    Args:
        options: `delimiter`, `quote` ("" for none) and `escape` (None for none), one character each.
    """

    def __init__(self, options: Options) -> None:
        self.delimiter = str(options["delimiter"])
        self._quote = str(options.get("quote", '"'))
        self._escape: str | None = options.get("escape")

    def parse(self, lines: Iterator[str]) -> Reader:
        """Return the parser of a file's lines."""
        return csv.reader(
            self._rewritten(lines, self.delimiter) if self._escape else lines,
            delimiter=self.delimiter,
            quotechar=self._quote or None,
            quoting=csv.QUOTE_MINIMAL if self._quote else csv.QUOTE_NONE,
            escapechar=self._escape,
            strict=True,
        )

    def fields(self, row: list[str]) -> list[str | None]:
        """Return the fields of a parsed row, None for those that are null."""
        if not self._escape:
            return [*row]
        return [None if field == _NULL else field.replace(_NULL, f"{self._escape}N") for field in row]

    def _rewritten(self, lines: Iterator[str], delimiter: str) -> Iterator[str]:
        escape = str(self._escape)
        kept = {self._quote, escape, delimiter, "\r", "\n"}
        pair = re.compile(f"{re.escape(escape)}(\r\n|.)", re.DOTALL)

        def rewrite(found: re.Match[str]) -> str:
            char = found[1]
            if char in kept:
                return found[0]
            if char == "\r\n":
                return f"{escape}\r{escape}\n"
            if char == "N":
                return _NULL
            if not self._quote and char in _CONTROLS:
                return escape + _CONTROLS[char]
            return escape + escape + char

        return (pair.sub(rewrite, line) if escape in line else line for line in lines)
