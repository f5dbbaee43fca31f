"""Parts of files and batches of rows, as the readers of every kind of source return them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokenloom.errors import BadRow
from tokenloom.storage.formats.arrays import offsets_of, runs_of

if TYPE_CHECKING:  # Jinja stays out of builds without conversations
    from tokenloom.chat.spans import Rendered

PARTITION_BYTES = 64_000_000  # about how much text, by default; the name of every spill depends on this cut
WANTED = "wanted_rows"  # in options: the numbers of rows, where the others are not needed
BATCH_BYTES = 4_000_000  # about how much text is in memory at a time
INDEX, MASK = "index", "mask"  # in the option `has`: a file of tokens has an index, or a mask
REPAIR = "repair or recreate the file, or leave it out"  # the next step for a damaged file

Options = Mapping[str, Any]  # how a file is read; each kind knows its own keys
PlaceOf = Callable[[int], str]  # how a message names a row, see SourceReader.place

REASONS = {
    "bad_page": "rows of a parquet row group, from the first batch that can't be decoded",
    "bad_id": "an id that is not a string or an integer, or is longer than 1,024 bytes",
    "bad_filter": "a value that the filter can't compare",
    "fields": "a CSV row with more or fewer fields than the header or `columns`",
    "invalid_json": "invalid JSON, or JSON that is nested too deep",
    "invalid_utf8": "bytes that are not UTF-8, or a lone surrogate",
    "missing_key": "not an object, or an object without the key of the text or the messages",
    "no_spans": "a conversation whose template does not show where the messages are",
    "not_conversation": "a value of the messages that is not a conversation of the source's layout",
    "not_text": "a value of the text that is neither a string nor a list of strings",
    "special_token": "a message that spells a special token",
    "template": "a conversation that the template refuses",
    "unknown_id": "a document of tokens with an id that is not in the vocabulary",
    "too_large": "more bytes than documents.max_bytes, or than the tokenizer accepts",
}


@dataclass(frozen=True)
class FileRange:
    """A part of one file: row groups, record batches, records or bytes [start, end).

    Attributes:
        start: the first of them.
        end: the one after the last.
        first_row: number of the part's first row in the file, if the rows were counted when the file was cut.
        first_byte: where the part begins, for formats that don't record it.
    """

    start: int
    end: int
    first_row: int | None = field(default=None, kw_only=True)
    first_byte: int | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class PartitionRange(FileRange):
    """A part of one file that a worker encodes in one go.

    Attributes:
        num_bytes: bytes of its text, or of the file; balances the work.
        num_rows: None for formats that don't record it.
    """

    num_bytes: int
    num_rows: int | None


class Group(NamedTuple):
    """A row group or record batch, the smallest part of a file that can be read; `first_byte` as in FileRange."""

    num_bytes: int
    num_rows: int
    first_byte: int | None = None


class BadValue(Exception):
    """A value of a row can't be used; `at` adds the row.

    Args:
        problem: the rule, the value and the next step.
        reason: one of REASONS.
        option: the option of the spec that helps, too.
    """

    def __init__(self, problem: str, reason: str, option: str = "") -> None:
        super().__init__(problem)
        self.reason = reason
        self.option = option

    def at(self, place: str, row: int) -> BadRow:
        """Return the error for a row, without a traceback, which would keep the row in memory."""
        return BadRow(f"{place}: {self}", row, self.reason, option=self.option)


@dataclass(frozen=True)
class RowBatch:
    """Rows of a file as Arrow columns, before a text is taken from them.

    Attributes:
        columns: n rows of the columns that the source names, perhaps with others.
        rows: (n,) uint64, their numbers in the file.
        bad: bad rows between them.
        num_not_read: rows that the filter leaves out by the statistics of the file.
        kept: (n,) which rows the filter keeps, where `columns` does not have what it compares: in rows of JSON, the
            values of a key may have different types.
        missing_keys: see Rows.
    """

    columns: pa.RecordBatch
    rows: NDArray[np.uint64]
    bad: tuple[BadRow, ...] = ()
    num_not_read: int = 0
    kept: NDArray[np.bool_] | None = None
    missing_keys: tuple[str, ...] = ()

    @property
    def num_rows(self) -> int:
        """Rows of the file that the batch accounts for."""
        return len(self.rows) + self.num_not_read + sum(row.num_rows for row in self.bad)

    def slice(self, start: int, end: int) -> RowBatch:
        """Return the rows [start, end) and the bad rows up to `end`, from `start` on unless that is 0."""
        first = int(self.rows[start]) if start else 0
        limit = int(self.rows[end]) if end < len(self.rows) else None
        bad = tuple(row for row in self.bad if first <= row.row and (limit is None or row.row < limit))
        kept = None if self.kept is None else self.kept[start:end]
        columns = self.columns.slice(start, end - start)
        return replace(self, columns=columns, rows=self.rows[start:end], bad=bad, kept=kept)


@dataclass(frozen=True)
class Rows:
    """A batch of n rows with their texts, and the rows between them that were left out.

    Attributes:
        texts: (n,) large_string; null for a row without a text. Of a conversation, its canonical JSON. Of a document
            of tokens large_binary, its ids as little-endian uint32.
        rows: (n,) uint64, the numbers of the rows in the file.
        ids: (n,) large_string, null for a row without an id; None if the source names no id.
        num_filtered: rows that the filter left out.
        num_not_read: those of them whose bytes were not read.
        bad: bad rows that were left out.
        missing_keys: keys of the filter, the id and the tools that no row of the partition has had so far.
        rendered: of n conversations, what their template made of them, once it did.
        num_without_target: conversations among those filtered of which nothing would be learned.
        masks: of n documents of tokens (n,) large_binary, whether a token is a target, 0 or 1 for each token as it will
            be encoded; None if their format has no masks.
    """

    texts: pa.Array
    rows: NDArray[np.uint64]
    ids: pa.Array | None = None
    num_filtered: int = 0
    num_not_read: int = 0
    bad: tuple[BadRow, ...] = ()
    missing_keys: tuple[str, ...] = ()
    rendered: tuple[Rendered, ...] | None = None
    num_without_target: int = 0
    masks: pa.Array | None = None

    @property
    def num_read(self) -> int:
        """Rows of the file that the batch accounts for."""
        return len(self.rows) + self.num_filtered + sum(bad.num_rows for bad in self.bad)

    def head(self, count: int) -> Rows:
        """Return the batch with only its first `count` texts."""
        return self.only(slice(count))

    def only(self, where: NDArray[np.int64] | slice) -> Rows:
        """Return the batch with only the texts at some positions, which ascend."""
        positions = np.arange(len(self.rows))[where]
        indices = pa.array(positions)
        return replace(
            self,
            texts=self.texts.take(indices),
            rows=self.rows[positions],
            ids=None if self.ids is None else self.ids.take(indices),
            rendered=None if self.rendered is None else tuple(self.rendered[i] for i in positions),
            masks=None if self.masks is None else self.masks.take(indices),
        )

    def take(self, where: NDArray[np.int64] | slice) -> Rows:
        """Return the texts at some positions, without the rows that were left out."""
        return replace(self.only(where), num_filtered=0, num_not_read=0, num_without_target=0, bad=())


def numbered(columns: pa.RecordBatch, first_row: int) -> RowBatch:
    """Return a record batch as the rows of a file from `first_row` on."""
    return RowBatch(columns, np.arange(first_row, first_row + len(columns), dtype=np.uint64))


def cut_groups(groups: Sequence[Group], partition_bytes: int | None) -> list[PartitionRange]:
    """Return runs of neighbouring groups of about `partition_bytes`; a larger group is a run of its own.

    Args:
        groups: all row groups or record batches of a file.
        partition_bytes: None for PARTITION_BYTES; a reader has it in its `columns`.
    """
    bytes_before = offsets_of(np.array([group.num_bytes for group in groups]))
    rows_before = offsets_of(np.array([group.num_rows for group in groups])).tolist()
    cuts: list[PartitionRange] = []
    for start, end in runs_of(bytes_before, partition_bytes or PARTITION_BYTES):
        num_bytes = int(bytes_before[end] - bytes_before[start])
        first_row = rows_before[start]
        num_rows = rows_before[end] - first_row
        first_byte = groups[start].first_byte
        cuts.append(PartitionRange(start, end, num_bytes, num_rows, first_row=first_row, first_byte=first_byte))
    return cuts


def cut_evenly(
    count: int, num_bytes: int, partition_bytes: int | None, num_rows: int | None = None
) -> list[PartitionRange]:
    """Return equal ranges of [0, count) of about `partition_bytes`.

    Args:
        count: bytes or records of a file.
        num_bytes: bytes of the file.
        partition_bytes: see cut_groups.
        num_rows: rows of the file if `count` counts rows.
    """
    num_parts = min(count, -(-num_bytes // (partition_bytes or PARTITION_BYTES)))
    bounds = [i * count // num_parts for i in range(num_parts)] + [count]
    return [
        PartitionRange(a, b, num_bytes * (b - a) // count, None if num_rows is None else b - a)
        for a, b in pairwise(bounds)
    ]


def locate_runs(rows: Sequence[int], gap: int = 0) -> list[FileRange]:
    """Return the runs of numbers in `rows`, which ascend, with at most `gap` other numbers between neighbours."""
    ranges: list[FileRange] = []
    for row in rows:
        start = ranges.pop().start if ranges and row <= ranges[-1].end + gap else row
        ranges.append(FileRange(start, row + 1))
    return ranges


def locate_groups(rows: Sequence[int], groups: Sequence[Group]) -> list[FileRange]:
    """Return the groups that hold `rows`, each as a range of its own; none holds a row beyond the last."""
    ends = np.cumsum([group.num_rows for group in groups], dtype=np.int64)
    found = np.unique(np.searchsorted(ends, np.array(rows, np.int64), side="right")).tolist()
    return [
        FileRange(i, i + 1, first_row=int(ends[i]) - groups[i].num_rows, first_byte=groups[i].first_byte)
        for i in found
        if i < len(groups)
    ]
