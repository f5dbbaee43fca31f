"""Read rows one at a time as Python values: the shared half of the kinds JSON, CSV, text and ArrayRecord."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tokenloom.errors import BadRow
from tokenloom.tasks.sources.base import BATCH_BYTES, FileRange, Options, Rows, SourceReader
from tokenloom.tasks.sources.rows.fields import Fields

_ROW_BYTES, _BAD_ROW_BYTES = 100, 1000  # in memory, beside the text


class RawRow(NamedTuple):
    """A row as its kind reads it.

    Attributes:
        row: its number in the file.
        value: what `RecordReader.parse` takes, or a BadRow.
        num_bytes: about how much memory it takes.
    """

    row: int
    value: Any
    num_bytes: int


class RecordReader(SourceReader):
    """The shared half of a reader; a kind adds `raw_rows` and `parse`, and its own partitions.

    Args:
        options: see SourceReader.
        fields: takes text and id from what `parse` returns.
    """

    def __init__(self, options: Options, fields: Fields) -> None:
        self.fields = fields
        self._skips = options.get("on_error") == "skip"

    @abstractmethod
    def raw_rows(self, url: str, start: int, end: int) -> Iterator[RawRow]:
        """Yield the rows of a part; raises BadRow only if reading can't continue."""

    @abstractmethod
    def parse(self, place: str, row: int, raw: Any) -> Any:
        """Return the row as text, or as a mapping of its fields; raises BadRow."""

    def decode(self, place: str, row: int, data: bytes) -> str:
        """Decode UTF-8; invalid bytes raise BadRow or are replaced, as the document rules say."""
        return self.fields.decoding.decode(place, row, data)

    def too_large(self, url: str, row: int, max_bytes: int) -> BadRow:
        """Return the BadRow for a row of more than `max_bytes`."""
        place = self.place(url, row)
        message = f"{place}: more than {max_bytes:,} bytes, too much for documents.max_bytes; raise that value"
        return BadRow(message, row, "too_large")

    def read(self, url: str, part: FileRange) -> Iterator[Rows]:
        """See SourceReader.read."""
        return self.batches(self.raw_rows(url, part.start, part.end), partial(self.place, url))

    def batches(self, raw_rows: Iterable[RawRow], place_of: Callable[[int], str]) -> Iterator[Rows]:
        """Yield rows in batches of about BATCH_BYTES.

        Args:
            raw_rows: as `raw_rows` yields them.
            place_of: how a message names a row.
        """
        batch = _Batch()
        for row, raw, num_bytes in raw_rows:
            try:
                self._take(batch, place_of, row, raw)
            except BadRow as bad:
                if not self._skips:
                    yield batch.take(self.fields)  # an earlier row may break the document rules; report the first
                    raise
                batch.bad.append(bad.changed())
                batch.num_bytes += _BAD_ROW_BYTES
            batch.num_bytes += num_bytes + _ROW_BYTES
            del raw  # may be large, and the batch has its text
            if batch.num_bytes >= BATCH_BYTES:
                yield batch.take(self.fields)
        yield batch.take(self.fields)

    def _take(self, batch: _Batch, place_of: Callable[[int], str], row: int, raw: Any) -> None:
        if isinstance(raw, BadRow):
            raise raw
        place = place_of(row)
        value = self.parse(place, row, raw)
        if not self.fields.keeps(place, row, value):
            batch.num_filtered += 1
            return
        text, identifier = self.fields.text(place, row, value), self.fields.id(place, row, value)
        batch.texts.append(text)
        batch.ids.append(identifier)
        batch.numbers.append(row)


class _Batch:
    """Collects rows for the next batch."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.texts: list[str | None] = []
        self.ids: list[str | None] = []
        self.numbers: list[int] = []
        self.bad: list[BadRow] = []
        self.num_filtered = self.num_bytes = 0

    def take(self, fields: Fields) -> Rows:
        """Return the collected rows, and start an empty batch."""
        rows = Rows(
            texts=pa.array(self.texts, pa.large_string()),
            rows=np.array(self.numbers, dtype=np.uint64),
            ids=pa.array(self.ids, pa.large_string()) if fields.has_id else None,
            num_filtered=self.num_filtered,
            bad=tuple(self.bad),
            missing_keys=tuple(sorted(fields.missing_keys)),
        )
        self._clear()
        return rows
