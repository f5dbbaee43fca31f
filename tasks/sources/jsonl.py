"""JSON lines, plain or .gz: a document is the text of one line's object; `row` is the byte offset of the line.

A plain file is cut into byte ranges; a range owns the lines that start in it. A .gz can't be cut: it is one
partition, read as a stream, and its offsets count the decompressed bytes.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import IO, Any

import numpy as np

from tokenloom.errors import InputError
from tokenloom.tasks.sources.base import (
    BATCH_BYTES,
    PARTITION_BYTES,
    PartitionRange,
    Rows,
    input_bytes,
    large_strings,
    open_input,
)

LineFile = IO[bytes] | gzip.GzipFile
_READ_BYTES = 2**22
_BOM = b"\xef\xbb\xbf"
_NOT_YET = (".bz2", ".zst", ".xz", ".lz4")


class Reader:
    """Reads JSON lines.

    Args:
        options: `text`, the key of the text, dotted for nested objects; `max_bytes`, the largest document.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._key = str(options["text"])
        # A line holds its document, perhaps escaped, and other keys: far more than that is no line.
        self._max_line_bytes = 2 * int(options["max_bytes"]) + _READ_BYTES

    def partitions(self, url: str) -> list[PartitionRange]:
        """See SourceReader.partitions; `start` and `end` count bytes."""
        if url.endswith(_NOT_YET):
            raise InputError(f"{url}: this compression is not supported by this release; use .gz or none")
        size = input_bytes(url)
        if _is_gzip(url):
            if size == 0:
                raise InputError(f"{url}: the file is empty, which no gzip file is; make it again")
            return [PartitionRange(0, size, size, None)]
        count = -(-size // PARTITION_BYTES)
        starts = [i * size // count for i in range(count)] + [size]
        return [PartitionRange(a, b, b - a, None) for a, b in pairwise(starts)]

    def read(self, url: str, start: int, end: int) -> Iterator[Rows]:
        """See SourceReader.read; `start` and `end` count bytes, and are not used for a .gz."""
        texts: list[str | None] = []
        rows: list[int] = []
        num_bytes = 0
        for offset, line in self._lines(url, start, end):
            if line.isspace() or not line:
                continue  # a blank line is no row
            texts.append(self._text_of(url, offset, line))
            rows.append(offset)
            num_bytes += len(line)
            if num_bytes >= BATCH_BYTES:
                yield Rows(large_strings(texts, rows, url), np.array(rows, dtype=np.uint64))
                texts, rows, num_bytes = [], [], 0
        if rows:
            yield Rows(large_strings(texts, rows, url), np.array(rows, dtype=np.uint64))

    def _lines(self, url: str, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        with open_input(url) as file:
            if not _is_gzip(url):
                yield from self._plain_lines(url, file, start, end)
                return
            try:
                with gzip.GzipFile(fileobj=file) as stream:
                    yield from self._split(url, stream, 0, None)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise InputError(f"{url}: broken gzip: {error}; make the file again or leave it out") from error

    def _plain_lines(self, url: str, file: IO[bytes], start: int, end: int) -> Iterator[tuple[int, bytes]]:
        if start > 0:  # a line that begins before `start` belongs to the range before
            file.seek(start - 1)
            start += len(self._read_line(url, file, start - 1)) - 1
        yield from self._split(url, file, start, end)

    def _read_line(self, url: str, file: LineFile, offset: int) -> bytes:
        line = file.readline(self._max_line_bytes + 1)
        if len(line) > self._max_line_bytes:
            raise InputError(
                f"{url}, byte {offset}: a line of more than {self._max_line_bytes:,} bytes; raise documents.max_bytes "
                "or mend the file"
            )
        return line

    def _split(self, url: str, file: LineFile, offset: int, end: int | None) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, line) of the lines that start in [offset, end)."""
        while end is None or offset < end:
            line = self._read_line(url, file, offset)
            if not line:
                return
            yield offset, line.removeprefix(_BOM) if offset == 0 else line
            offset += len(line)

    def _text_of(self, url: str, offset: int, line: bytes) -> str | None:
        place = f"{url}, line at byte {offset}"
        try:
            value: Any = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise InputError(f"{place}: invalid UTF-8 at byte {offset + error.start}; mend the line") from error
        except RecursionError as error:
            raise InputError(f"{place}: JSON nested too deep to be read; mend the line") from error
        except ValueError as error:
            raise InputError(f"{place}: no JSON: {error}; mend the line") from error
        text = self._pick(place, value)
        if text is not None and not isinstance(text, str):
            raise InputError(f"{place}: {self._key!r} is {type(text).__name__}, not text; mend the line")
        return text

    def _pick(self, place: str, value: Any) -> Any:
        if isinstance(value, dict) and self._key in value:
            return value[self._key]
        for part in self._key.split("."):
            if not isinstance(value, dict):
                raise InputError(
                    f"{place}: {type(value).__name__} where an object with {part!r} is needed; mend the line"
                )
            if part not in value:
                keys = ", ".join(map(str, list(value)[:12])) or "none"
                raise InputError(f"{place}: no key {part!r}; its keys are: {keys}. Set text: to one of them")
            value = value[part]
        return value

    def locate(self, url: str, rows: Sequence[int]) -> list[tuple[int, int]]:
        """See SourceReader.locate: a line each, or all of a .gz."""
        if _is_gzip(url):
            return [(0, input_bytes(url))]
        return [(row, row + 1) for row in rows]


def _is_gzip(url: str) -> bool:
    return url.endswith(".gz")
