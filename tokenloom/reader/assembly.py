"""From rows to arrays: tokens are copied in their stored width, then widened; documents become ids and positions.

The copy goes through memoryviews, which hold Python's lock: a consumer that computes in Python would else take it
after every row, for 5 ms each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.reader.rows import Int64s, Rows, offsets_of, ranges

if TYPE_CHECKING:
    from tokenloom.reader.dataset import TokenDataset

IGNORED = -100  # the label that losses leave out
FIELDS = ("cu_seqlens", "document_ids", "position_ids")
LABELS = ("shifted", "same")


@dataclass(frozen=True)
class BatchFormat:
    """What a batch holds, and how: see TokenDataset for the fields."""

    seq_len: int
    labels: str
    fields: tuple[str, ...]
    mask_documents: bool  # labels that belong to another document than the token before them are left out
    short_rows: bool  # a row may be shorter than T + 1
    eot_id: int
    dtype: np.dtype[Any]

    @property
    def row_tokens(self) -> int:
        """T + 1, the tokens of a row."""
        return self.seq_len + 1

    @property
    def needs_marks(self) -> bool:
        """Whether the rows must tell where documents begin in them."""
        return bool(self.fields) or self.mask_documents or self.short_rows


@dataclass(frozen=True)
class Part:
    """The rows of one dataset among the rows of a block: row r of `rows` goes to place `places[r]`, ascending."""

    dataset: TokenDataset
    places: Int64s  # (n,)
    rows: Rows

    @cached_property
    def copies(self) -> list[tuple[int, int, int, int]]:
        """Shard, first byte, end byte and target byte of each piece."""
        rows, form = self.rows, self.dataset.format
        width = form.dtype.itemsize
        firsts = np.repeat(offsets_of(rows.lengths)[rows.row_offsets[:-1]], np.diff(rows.row_offsets))
        within = np.cumsum(rows.lengths) - rows.lengths - firsts
        target = np.repeat(self.places, np.diff(rows.row_offsets)) * form.row_tokens + within
        start = rows.starts * width
        columns = (rows.shards, start, start + rows.lengths * width, target * width)
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def pieces(self, first: int, end: int) -> list[tuple[int, int, int, int]]:
        """Return the copies of rows [first, end)."""
        return self.copies[int(self.rows.row_offsets[first]) : int(self.rows.row_offsets[end])]

    def copy(self, first: int, end: int, base: int, buffer: memoryview) -> None:
        """Copy the tokens of rows [first, end) of this part into `buffer`, whose byte 0 is byte `base` of the block."""
        opened, open_bytes = self.dataset.shards, self.dataset.shards.bytes
        for shard, start, stop, target in self.pieces(first, end):
            data = open_bytes.get(shard) or opened[shard].bytes
            buffer[target - base : target - base + stop - start] = data[start:stop]


class Block:
    """Some consecutive rows of a stream, from one or several datasets."""

    def __init__(self, parts: Sequence[Part], num_rows: int, form: BatchFormat) -> None:
        self.parts, self.num_rows, self.form = parts, num_rows, form

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in its stored width."""
        return self.form.row_tokens * self.form.dtype.itemsize

    def within(self, first: int, end: int) -> list[tuple[Part, int, int]]:
        """Return the parts that have rows among [first, end), and which of their rows."""
        found = [(part, *np.searchsorted(part.places, (first, end)).tolist()) for part in self.parts]
        return [(part, a, b) for part, a, b in found if a < b]

    def copy_tokens(self, first: int, end: int, buffer: NDArray[Any]) -> None:
        """Copy rows [first, end) into `buffer`, (end - first, T + 1) of the stored type; places without tokens get eot."""
        if self.form.short_rows:
            buffer[...] = self.form.eot_id
        target = buffer.reshape(-1).data.cast("B")
        for part, a, b in self.within(first, end):
            part.copy(a, b, first * self.row_bytes, target)

    def boundaries(self, first: int, end: int) -> Boundaries:
        """Return where documents and padding begin in rows [first, end)."""
        lengths = np.zeros(end - first, dtype=np.int64)
        rows_of_marks, marks = [], []
        for part, a, b in self.within(first, end):
            rows, places = part.rows, part.places[a:b] - first
            pieces = offsets_of(rows.lengths)[rows.row_offsets[a : b + 1]]
            lengths[places] = np.diff(pieces)
            if rows.marks is None or rows.mark_offsets is None:  # not asked for: the rows of a last, short step
                continue
            rows_of_marks.append(np.repeat(places, np.diff(rows.mark_offsets[a : b + 1])))
            marks.append(rows.marks[rows.mark_offsets[a] : rows.mark_offsets[b]])
        row, mark = (np.concatenate([np.empty(0, np.int64), *x]) for x in (rows_of_marks, marks))
        order = np.argsort(row, kind="stable") if len(marks) > 1 else slice(None)
        return Boundaries(self.form, lengths, row[order], mark[order])


class Boundaries:
    """Where documents and padding begin in (n,) rows, and the arrays made from it.

    Args:
        form: what the batch holds.
        lengths: (n,) tokens of each row; what is behind them is padding.
        mark_rows, marks: (m,) row and place, in [1, T], of each begin; sorted by row, then place.
    """

    def __init__(self, form: BatchFormat, lengths: Int64s, mark_rows: Int64s, marks: Int64s) -> None:
        self._form, self._lengths, self._mark_rows, self._marks = form, lengths, mark_rows, marks
        seq_len = form.seq_len
        inside = marks < seq_len
        row_starts = np.arange(len(lengths), dtype=np.int64) * seq_len
        begins = mark_rows[inside] * seq_len + marks[inside]
        #: (r,) flat places where a run of one document or of padding begins, over (n, T)
        self.runs = np.sort(np.concatenate([row_starts, begins]))
        self._run_lengths = np.diff(self.runs, append=len(lengths) * seq_len)

    def fill_document_ids(self, target: NDArray[np.int32]) -> None:
        """Write each token's document, from 0 in every row, -1 for padding; target is (n, T)."""
        rows, places = np.divmod(self.runs, self._form.seq_len)
        ids = np.arange(len(self.runs)) - np.searchsorted(rows, rows, side="left")
        ids[places >= self._lengths[rows]] = -1
        target.reshape(-1)[:] = np.repeat(ids.astype(np.int32), self._run_lengths)

    def fill_position_ids(self, target: NDArray[np.int32]) -> None:
        """Write each token's place in its document within the row, from 0; target is (n, T)."""
        firsts = (self.runs % self._form.seq_len).astype(np.int32)
        places = np.arange(self._form.seq_len, dtype=np.int32)
        np.subtract(places, np.repeat(firsts, self._run_lengths).reshape(target.shape), out=target)

    def ignored_labels(self) -> Int64s:
        """Return the flat places, over (n, T), of labels that no loss may count."""
        seq_len, shift = self._form.seq_len, int(self._form.labels == "shifted")
        row_starts = np.arange(len(self._lengths), dtype=np.int64) * seq_len
        first_padding = np.clip(self._lengths - shift, 0, seq_len)
        ignored = ranges(row_starts + first_padding, seq_len - first_padding)
        if not self._form.mask_documents:
            return ignored
        places = self._marks - shift
        of_documents = (self._mark_rows * seq_len + places)[places < seq_len]
        return np.concatenate([ignored, of_documents])

    def cu_seqlens(self, first: int, end: int) -> NDArray[np.int32]:
        """Return the (runs + 1,) int32 offsets of the runs of rows [first, end), flattened, as flash attention takes."""
        begin, stop = first * self._form.seq_len, end * self._form.seq_len
        a, b = np.searchsorted(self.runs, (begin, stop))
        return np.append(self.runs[a:b] - begin, stop - begin).astype(np.int32)


def widen(form: BatchFormat, tokens: NDArray[Any], ids: NDArray[np.int64], labels: NDArray[np.int64]) -> None:
    """Write inputs and labels, each (n, T), from rows of (n, T + 1) tokens in their stored width."""
    np.copyto(ids, tokens[:, :-1])
    np.copyto(labels, tokens[:, 1:] if form.labels == "shifted" else tokens[:, :-1])
