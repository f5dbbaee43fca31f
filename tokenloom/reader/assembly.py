"""From rows to arrays: tokens are copied in their stored width, then widened; documents become ids and positions.

The copy goes through memoryviews, which keep Python's lock: a consumer that computes in Python would else take it
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
    mask_documents: bool  # labels that begin another document than the token before them are left out
    short_rows: bool  # a row may be shorter than T + 1
    eot_id: int
    dtype: np.dtype[Any]

    @property
    def row_tokens(self) -> int:
        """T + 1, the tokens of a row."""
        return self.seq_len + 1

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in its stored width."""
        return self.row_tokens * self.dtype.itemsize

    @property
    def row_fields(self) -> tuple[str, ...]:
        """The fields of shape (B, T)."""
        return tuple(name for name in self.fields if name != "cu_seqlens")

    @property
    def needs_marks(self) -> bool:
        """Whether the rows must tell where documents begin in them."""
        return bool(self.fields) or self.mask_documents or self.short_rows


@dataclass(frozen=True)
class Part:
    """The rows of one dataset in a block: row r of `rows` stands at place `places[r]`, ascending."""

    dataset: TokenDataset
    places: Int64s  # (n,)
    rows: Rows

    @cached_property
    def lengths(self) -> Int64s:
        """(n,) tokens of each row."""
        return np.diff(offsets_of(self.rows.lengths)[self.rows.row_offsets])


class Block:
    """Consecutive rows of a stream, from one or several datasets; places without a row are padding.

    Args:
        parts: each place is in at most one of them.
        num_places: rows of the block, with padding.
        form: what is made of them.
    """

    def __init__(self, parts: Sequence[Part], num_places: int, form: BatchFormat) -> None:
        self.parts, self.num_places, self.form = parts, num_places, form
        #: (num_places,) tokens of each row; what is behind them is padding
        self.lengths = np.zeros(num_places, dtype=np.int64)
        for part in parts:
            self.lengths[part.places] = part.lengths
        self.has_padding = bool((self.lengths < form.row_tokens).any())

    def touch(self) -> None:
        """Keep the shards of the rows open before others."""
        for part in self.parts:
            part.dataset.shards.touch(np.unique(part.rows.shards).tolist())

    @cached_property
    def _pieces(self) -> tuple[list[tuple[Any, int, int, int]], list[int]]:
        """What rows are made of, in order: (open shards, shard, first byte, end byte); and where each row begins."""
        width, columns = self.form.dtype.itemsize, []
        for index, part in enumerate(self.parts):
            rows, counts = part.rows, np.diff(part.rows.row_offsets)
            source = np.full(len(rows.starts), index)
            start = rows.starts * width
            columns.append([np.repeat(part.places, counts), source, rows.shards, start, start + rows.lengths * width])
        columns.append(self._padding())  # last, as it is behind the tokens of its row: the sort is stable
        place, source, *bounds = (np.concatenate(column) for column in zip(*columns, strict=True))
        order = np.argsort(place, kind="stable") if len(columns) > 2 or self.has_padding else slice(None)
        sources = [part.dataset.shards for part in self.parts] + [_Padding(self.form)]
        opened = [sources[i] for i in source[order].tolist()]
        pieces = list(zip(opened, *(column[order].tolist() for column in bounds), strict=True))
        return pieces, np.searchsorted(place[order], np.arange(self.num_places + 1)).tolist()

    def _padding(self) -> list[Int64s]:
        short = np.flatnonzero(self.lengths < self.form.row_tokens)
        zero = np.zeros(len(short), dtype=np.int64)
        missing = (self.form.row_tokens - self.lengths[short]) * self.form.dtype.itemsize
        return [short, zero - 1, zero, zero, missing]

    def pieces(self, first: int, end: int) -> list[tuple[Any, int, int, int]]:
        """Return what rows [first, end) are made of: (open shards, shard, first byte, end byte), in order."""
        pieces, begins = self._pieces
        return pieces[begins[first] : begins[end]]

    def tokens(self, first: int, end: int) -> NDArray[Any]:
        """Return rows [first, end), (end - first, T + 1) of the stored type; padding is eot."""
        pieces = self.pieces(first, end)
        try:
            found = [opened.bytes[shard][a:b] for opened, shard, a, b in pieces]
        except KeyError:  # a shard is not open
            found = _read_one_by_one(pieces)
        return np.frombuffer(b"".join(found), self.form.dtype).reshape(end - first, self.form.row_tokens)

    @cached_property
    def boundaries(self) -> Boundaries:
        """Where documents and padding begin in the rows."""
        places, marks = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        for part in self.parts:
            if part.rows.marks is not None and part.rows.mark_offsets is not None:
                places.append(np.repeat(part.places, np.diff(part.rows.mark_offsets)))
                marks.append(part.rows.marks)
        place, mark = np.concatenate(places), np.concatenate(marks)
        order = np.argsort(place, kind="stable") if len(self.parts) > 1 else slice(None)
        return Boundaries(self.form, self.lengths, place[order], mark[order])


def _read_one_by_one(pieces: Sequence[tuple[Any, int, int, int]]) -> list[Any]:
    """Return the bytes of pieces, copied before a shard is opened: a view of one that is dropped would keep its map."""
    done: list[Any] = []
    found: list[Any] = []
    for opened, shard, start, end in pieces:
        if shard not in opened.bytes:
            done.append(b"".join(found))
            found.clear()
        found.append((opened.bytes.get(shard) or opened[shard].bytes)[start:end])
    return done + found


class _Padding:
    """Stands for open shards of nothing but eot."""

    def __init__(self, form: BatchFormat) -> None:
        self.bytes = {0: np.full(form.row_tokens, form.eot_id, form.dtype).data.cast("B")}

    def read_ahead(self, shard: int, start: int, end: int) -> None:
        """Do nothing: it lies in memory."""


class Boundaries:
    """Where documents and padding begin in (n,) rows, and what is made of it for any range of them.

    Args:
        form: what a batch holds.
        lengths: (n,) tokens of each row; what is behind them is padding.
        places, marks: (m,) row, and place in [1, T] in it, of each begin; sorted by row, then place.
    """

    def __init__(self, form: BatchFormat, lengths: Int64s, places: Int64s, marks: Int64s) -> None:
        self._form = form
        seq_len, num_rows = form.seq_len, len(lengths)
        inside = marks < seq_len
        row_begins = np.arange(num_rows, dtype=np.int64) * seq_len
        runs = np.sort(np.concatenate([row_begins, places[inside] * seq_len + marks[inside]]))
        rows, firsts = np.divmod(runs, seq_len)
        #: (num_rows + 1,) runs, of one document or of padding, before each row
        self._row_runs = np.searchsorted(runs, np.arange(num_rows + 1, dtype=np.int64) * seq_len)
        self._runs, self._firsts = runs, firsts.astype(np.int32)
        self._run_lengths = np.diff(runs, append=num_rows * seq_len)
        ids = np.arange(len(runs)) - self._row_runs[rows]
        self._ids = np.where(firsts >= lengths[rows], -1, ids).astype(np.int32)
        self._ignored = np.sort(self._ignored_labels(lengths, places, marks))

    def _ignored_labels(self, lengths: Int64s, places: Int64s, marks: Int64s) -> Int64s:
        seq_len, shift = self._form.seq_len, int(self._form.labels == "shifted")
        first = np.clip(lengths - shift, 0, seq_len)  # label without a token
        ignored = ranges(np.arange(len(lengths)) * seq_len + first, seq_len - first)
        if not self._form.mask_documents:
            return ignored
        labels = marks - shift
        return np.union1d(ignored, (places * seq_len + labels)[labels < seq_len])

    def document_ids(self, first: int, end: int) -> NDArray[np.int32]:
        """Return each token's document in rows [first, end), from 0 in every row, -1 for padding; flat."""
        runs = slice(self._row_runs[first], self._row_runs[end])
        return np.repeat(self._ids[runs], self._run_lengths[runs])

    def position_ids(self, first: int, end: int) -> NDArray[np.int32]:
        """Return each token's place in its document within the row, from 0, in rows [first, end); flat."""
        runs = slice(self._row_runs[first], self._row_runs[end])
        places = np.repeat(self._firsts[runs], self._run_lengths[runs]).reshape(end - first, self._form.seq_len)
        return np.subtract(np.arange(self._form.seq_len, dtype=np.int32), places, out=places).reshape(-1)

    def ignored_labels(self, first: int, end: int) -> Int64s:
        """Return the flat places, in rows [first, end), of labels that no loss may count."""
        begin, stop = first * self._form.seq_len, end * self._form.seq_len
        a, b = np.searchsorted(self._ignored, (begin, stop))
        return self._ignored[a:b] - begin

    def cu_seqlens(self, first: int, end: int) -> NDArray[np.int32]:
        """Return the (runs + 1,) int32 offsets of the runs of rows [first, end), flattened, for flash attention."""
        begin, stop = first * self._form.seq_len, end * self._form.seq_len
        runs = self._runs[self._row_runs[first] : self._row_runs[end]]
        return np.append(runs - begin, stop - begin).astype(np.int32)


def widen(form: BatchFormat, tokens: NDArray[Any], ids: NDArray[np.int64], labels: NDArray[np.int64]) -> None:
    """Write inputs and labels, each (n, T), from rows of (n, T + 1) tokens in their stored width."""
    np.copyto(ids, tokens[:, :-1])
    np.copyto(labels, tokens[:, 1:] if form.labels == "shifted" else tokens[:, :-1])
