"""Text files in UTF-8: a file is one document, row 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tokenloom.errors import InputError
from tokenloom.tasks.sources.base import PartitionRange, Rows, input_bytes, open_input


class Reader:
    """Reads text files.

    Args:
        options: `max_bytes`, the largest document.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._max_bytes = int(options["max_bytes"])

    def partitions(self, url: str) -> list[PartitionRange]:
        """See SourceReader.partitions: the whole file."""
        size = input_bytes(url)
        return [PartitionRange(0, size, size, 1)]

    def read(self, url: str, start: int, end: int) -> Iterator[Rows]:
        """See SourceReader.read: one row."""
        if end > self._max_bytes:
            raise InputError(
                f"{url}: {end:,} bytes; a document may have {self._max_bytes:,} (documents.max_bytes); cut the file"
            )
        with open_input(url) as file:
            data = file.read()
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{url}: invalid UTF-8 at byte {error.start}; a text source is UTF-8: mend it") from error
        yield Rows(pa.array([text], pa.large_string()), np.zeros(1, dtype=np.uint64))

    def locate(self, url: str, rows: Sequence[int]) -> list[tuple[int, int]]:
        """See SourceReader.locate: the whole file."""
        return [(0, input_bytes(url))]
