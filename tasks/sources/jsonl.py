"""JSON lines, or one JSON array of objects; plain or compressed. A document is the text of one object.

`row` is the byte offset of the line in the decompressed file; in an array, the position of the object. A plain file of
lines is cut into byte ranges, and a range owns the lines that start in it. Any other file is one partition, read as a
stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tokenloom.errors import BadRow
from tokenloom.tasks.sources.base import Options
from tokenloom.tasks.sources.files.compressed import compression, open_decompressed
from tokenloom.tasks.sources.rows.fields import Fields
from tokenloom.tasks.sources.rows.json_values import OTHER_BYTES, array_values, parse_json, starts_array
from tokenloom.tasks.sources.rows.records import RawRow
from tokenloom.tasks.sources.rows.text_files import TextFileReader

_BOM = b"\xef\xbb\xbf"


class Reader(TextFileReader):
    """Reads JSON lines and JSON arrays.

    Args:
        options: see SourceReader; `text`, `id` and the columns of `filter` are keys, dotted for nested objects.
    """

    def __init__(self, options: Options) -> None:
        super().__init__(options, Fields(options))
        self._arrays: dict[str, bool] = {}
        # A line holds its document, perhaps with escapes, and other keys. Far more than that is not a line.
        self._max_line_bytes = 2 * int(options["max_bytes"]) + OTHER_BYTES

    def _is_array(self, url: str) -> bool:
        if url not in self._arrays:
            with open_decompressed(url) as file:
                self._arrays[url] = starts_array(file)
        return self._arrays[url]

    def is_cut(self, url: str) -> bool:
        """See TextFileReader.is_cut."""
        return compression(url) is None and not self._is_array(url)

    def raw_rows(self, url: str, start: int, end: int) -> Iterator[RawRow]:
        """See RecordReader.raw_rows; `start` and `end` are ignored for a file that is one partition."""
        with open_decompressed(url) as file:
            if bad := self.utf16_row(url, file):
                yield RawRow(0, bad, 0)
                return
            if self._is_array(url):
                values = array_values(file, url, self._max_line_bytes)
                for row, (value, num_chars, _) in enumerate(values):
                    yield RawRow(row, value, num_chars)
                return
            last = end if self.is_cut(url) else None
            for raw in self.pieces(url, file, "\n", self._max_line_bytes, start, last):
                if raw.row == 0 and isinstance(raw.value, bytes):
                    raw = raw._replace(value=raw.value.removeprefix(_BOM))
                # A blank line is not a row.
                if isinstance(raw.value, BadRow) or (raw.value and not raw.value.isspace()):
                    yield raw

    def place(self, url: str, row: int) -> str:
        """See RecordReader.place."""
        if self._is_array(url):
            return f"{url}, value {row} of its JSON array"
        return f"{url}, line at byte {row}"

    def parse(self, place: str, row: int, raw: Any) -> Any:
        """See RecordReader.parse; the values of an array are parsed already."""
        return parse_json(place, row, self.decode(place, row, raw)) if isinstance(raw, bytes) else raw
