"""What every kind of source offers: its files, their cut into partitions, and their rows in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokenloom.errors import BadRow
from tokenloom.spec.leave_out import LeaveOut
from tokenloom.tasks.sources.files.finding import FoundFile

PARTITION_BYTES = 64_000_000  # of text, about; part of every spill's name through the cut itself
BATCH_BYTES = 4_000_000  # of text, about, in memory at a time


@dataclass(frozen=True)
class PartitionRange:
    """A part of one file: row groups, record batches, rows or bytes [start, end).

    `num_bytes` is its text or file bytes, for balancing work; `num_rows` is known for formats that say it.
    """

    start: int
    end: int
    num_bytes: int
    num_rows: int | None


REASONS = {
    "bad_page": "rows of a parquet row group, from the first batch on that can't be decoded",
    "bad_id": "an id that is no string or integer, or longer than 1,024 bytes",
    "bad_filter": "a value that the filter can't compare",
    "fields": "a CSV row with more or fewer fields than the header, or than `columns` names",
    "invalid_json": "no JSON, or nested too deep",
    "invalid_utf8": "bytes that are not UTF-8, or not of the source's `encoding`, or a lone surrogate",
    "missing_key": "no object, or one without the key of the text",
    "not_text": "a value of the text that is neither text nor a list of texts",
    "too_large": "more bytes than documents.max_bytes, or than the tokenizer can take",
}


@dataclass(frozen=True)
class Rows:
    """A batch of rows: n with their texts, and what was left out between them.

    Shapes: texts (n,) large_string, null where there is none; rows (n,) uint64, numbers in the file; ids (n,)
    large_string, null where there is none, or None if the source names no id.
    """

    texts: pa.Array
    rows: NDArray[np.uint64]
    ids: pa.Array | None = None
    num_filtered: int = 0  # rows that the filter left out
    num_not_read: int = 0  # those of them that were never read
    bad: tuple[BadRow, ...] = ()
    unseen: tuple[str, ...] = ()  # keys of filter and id that no row of the partition had, up to here

    @property
    def num_read(self) -> int:
        """Rows of the file that the batch speaks for."""
        return len(self.rows) + self.num_filtered + sum(bad.num_rows for bad in self.bad)

    def head(self, count: int) -> Rows:
        """Return the batch with its first `count` texts alone."""
        ids = None if self.ids is None else self.ids.slice(0, count)
        return replace(self, texts=self.texts.slice(0, count), rows=self.rows[:count], ids=ids)


def cut_groups(sizes: Sequence[tuple[int, int]]) -> list[PartitionRange]:
    """Return runs of neighbouring groups of about PARTITION_BYTES, a larger group alone.

    Args:
        sizes: (bytes of text, rows) of every row group or record batch of a file.
    """
    cuts: list[PartitionRange] = []
    start, num_bytes, num_rows = 0, 0, 0
    for i, (group_bytes, group_rows) in enumerate(sizes):
        if num_bytes and num_bytes + group_bytes > PARTITION_BYTES:
            cuts.append(PartitionRange(start, i, num_bytes, num_rows))
            start, num_bytes, num_rows = i, 0, 0
        num_bytes, num_rows = num_bytes + group_bytes, num_rows + group_rows
    if start < len(sizes):
        cuts.append(PartitionRange(start, len(sizes), num_bytes, num_rows))
    return cuts


def cut_evenly(count: int, num_bytes: int, num_rows: int | None = None) -> list[PartitionRange]:
    """Return equal ranges of [0, count) of about PARTITION_BYTES.

    Args:
        count: bytes or records of a file.
        num_bytes: bytes of the file.
        num_rows: rows of the file if they are what is counted.
    """
    num_parts = min(count, -(-num_bytes // PARTITION_BYTES))
    bounds = [i * count // num_parts for i in range(num_parts)] + [count]
    return [
        PartitionRange(a, b, num_bytes * (b - a) // count, None if num_rows is None else b - a)
        for a, b in pairwise(bounds)
    ]


def groups_of(rows: Sequence[int], counts: Sequence[int]) -> list[tuple[int, int]]:
    """Return the groups [i, i + 1) that hold `rows`, where group i has counts[i] rows."""
    groups = np.unique(np.searchsorted(np.cumsum(counts), np.array(rows), side="right"))
    return [(int(group), int(group) + 1) for group in groups]


class SourceReader(Protocol):
    """Reads the files of one source. Every error is an InputError that names file and row group, row or byte.

    A reader is made from its options: the fields of the source in the spec, and `max_bytes`, `on_error` and
    `encoding_errors` of its document rules. With `on_error: skip` bad rows come in `Rows.bad`; else BadRow is raised.
    """

    def files(self, path: str, leave_out: LeaveOut | None = None) -> list[FoundFile]:
        """Return the files that the source's `path` means, in order, without those to leave out.

        A source that has no `path` is asked for "".
        """

    def place(self, url: str, row: int) -> str:
        """Return how a message names a row of a file."""

    def partitions(self, url: str) -> list[PartitionRange]:
        """Cut a file into partitions of about PARTITION_BYTES of text; a function of the file alone."""

    def read(self, url: str, start: int, end: int) -> Iterator[Rows]:
        """Yield the rows of a partition in order, in batches of about BATCH_BYTES."""

    def locate(self, url: str, rows: Sequence[int]) -> list[tuple[int, int]]:
        """Return ranges [start, end) for `read` that hold `rows` (ascending) and as little else as can be."""
