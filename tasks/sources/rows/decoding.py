"""Decode the texts and ids of rows: what is not valid becomes U+FFFD or a bad row, as the document rules say."""

from __future__ import annotations

import re

from tokenloom.errors import BadRow
from tokenloom.tasks.sources.base import Options

_TEXT_FILES = ("text", "jsonl", "csv")
_SURROGATES = re.compile("[\ud800-\udfff]")
_LONE = re.compile("[\ud800-\udc7f\udd00-\udfff]")
REPLACE = "replace bad bytes (documents.encoding_errors: replace)"


class Decoding:
    """How a source decodes bytes.

    Args:
        options: see SourceReader.

    Attributes:
        replaces: whether what is not valid becomes U+FFFD.
        advice: the next step for bytes that are not UTF-8.
    """

    def __init__(self, options: Options) -> None:
        self.replaces = options.get("encoding_errors") == "replace"
        self.advice = "repair the file"
        if options.get("kind") in _TEXT_FILES:
            self.advice += ", or convert it, for example with iconv -f CP1252 -t UTF-8"

    def decode(self, place: str, row: int, data: bytes) -> str:
        """Return UTF-8 as text; raises BadRow."""
        try:
            return data.decode("utf-8", "replace" if self.replaces else "strict")
        except UnicodeDecodeError as error:
            raise self._bad_row(place, row, f"invalid UTF-8 at byte {error.start}") from error

    def clean(self, place: str, row: int, text: str, what: str) -> str:
        """Return a text that UTF-8 can encode, without lone surrogates; raises BadRow."""
        if text.isascii() or not _SURROGATES.search(text):
            return text
        if self.replaces:  # bytes that were not UTF-8 are surrogates, too (PEP 383)
            return _LONE.sub("\ufffd", text).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        raise self._bad_row(place, row, f"invalid UTF-8, or a lone surrogate, in its {what}")

    def _bad_row(self, place: str, row: int, found: str) -> BadRow:
        return BadRow(f"{place}: {found}; {self.advice}", row, "invalid_utf8", option=REPLACE)
