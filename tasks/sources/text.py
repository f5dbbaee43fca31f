"""Text files, plain or compressed: a file is one document, or several with a separator between them.

`row` is 0; with a separator, the byte offset in the decompressed file at which the document begins. A document is then
the text between two separators without the line ends around it; an empty one is not a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tokenloom.errors import BadRow
from tokenloom.tasks.sources.base import Options, PartitionRange
from tokenloom.tasks.sources.files.compressed import compression, open_decompressed
from tokenloom.tasks.sources.rows.fields import Fields
from tokenloom.tasks.sources.rows.records import RawRow
from tokenloom.tasks.sources.rows.text_files import TextFileReader


class Reader(TextFileReader):
    """Reads text files.

    Args:
        options: see SourceReader; `separator` may be None.
    """

    is_any_text = True

    def __init__(self, options: Options) -> None:
        super().__init__(options, Fields({**options, "text": None}))
        self._max_bytes = int(options["max_bytes"])
        self._separator = str(options.get("separator") or "")
        # Where a separator that overlaps itself is found ("\n\n" in "\n\n\n") depends on where the search begins, so a
        # file with such a separator is not cut.
        self._overlaps_itself = any(
            self._separator.startswith(self._separator[i:]) for i in range(1, len(self._separator))
        )

    def partitions(self, url: str) -> list[PartitionRange]:
        """See SourceReader.partitions; `start` and `end` count bytes of the file."""
        parts = super().partitions(url)
        return parts if self._separator else [replace(part, num_rows=1) for part in parts]

    def is_cut(self, url: str) -> bool:
        """See TextFileReader.is_cut."""
        return bool(self._separator) and not self._overlaps_itself and compression(url) is None

    def raw_rows(self, url: str, start: int, end: int) -> Iterator[RawRow]:
        """See RecordReader.raw_rows."""
        with open_decompressed(url) as file:
            if bad := self.utf16_row(url, file):
                yield RawRow(0, bad, 0)
            elif self._separator:
                last = end if self.is_cut(url) else None
                for raw in self.pieces(url, file, self._separator, self._max_bytes, start, last):
                    if isinstance(raw.value, BadRow):
                        yield raw
                    elif text := raw.value.strip(b"\r\n"):
                        yield raw._replace(value=text)
            else:
                data = file.read(self._max_bytes + 1)
                is_large = len(data) > self._max_bytes
                yield RawRow(0, self.too_large(url, 0, self._max_bytes) if is_large else data, len(data))

    def place(self, url: str, row: int) -> str:
        """See RecordReader.place."""
        return f"{url}, document at byte {row}" if self._separator else url

    def parse(self, place: str, row: int, raw: Any) -> Any:
        """See RecordReader.parse."""
        return self.decode(place, row, raw)
