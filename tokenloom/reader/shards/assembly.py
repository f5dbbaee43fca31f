"""From rows to arrays: tokens are copied in their stored width, then widened; documents become ids and positions.

Rows are copied by joining memoryviews: for some kilobytes each that is quicker than an array operation, which would
also let go of Python's lock, for 5 ms each time where another thread computes in Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.reader.shards.rows import Int64s, Rows, offsets_of, ranges

if TYPE_CHECKING:
    from tokenloom.reader.dataset import TokenDataset

IGNORED = -100  # the label that losses leave out
FIELDS = ("cu_seqlens", "document_ids", "position_ids")
LABELS = ("shifted", "same")
_TOKENS_AT_A_TIME = 2**17  # of a field: memory of larger arrays is given back to the system, and faulted in again


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

    def lengths(self) -> Int64s:
        """Return the (n,) tokens of each row."""
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
            self.lengths[part.places] = part.lengths()
        self.has_padding = bool((self.lengths < form.row_tokens).any())
        # No cached_property: until Python 3.12 it has a lock, which a fork may leave locked in the child.
        self._known_pieces: tuple[list[list[Any]], Int64s] | None = None
        self._known_boundaries: Boundaries | None = None

    def touch(self) -> None:
        """Keep the shards of the rows open before others."""
        for part in self.parts:
            part.dataset.shards.touch(np.flatnonzero(np.bincount(part.rows.shards)).tolist())

    def _pieces(self) -> tuple[list[list[Any]], Int64s]:
        """What rows are made of, in order: open shards, shards, first bytes, end bytes; and where each row begins."""
        width, columns = self.form.dtype.itemsize, []
        for index, part in enumerate(self.parts):
            rows = part.rows
            place, start = np.repeat(part.places, np.diff(rows.row_offsets)), rows.starts * width
            columns.append([place, np.full(len(start), index), rows.shards, start, start + rows.lengths * width])
        if self.has_padding:
            columns.append(self._padding())  # last, as it is behind the tokens of its row: the sort is stable
        place, source, *bounds = (np.concatenate(column) for column in zip(*columns, strict=True))
        order = np.argsort(place, kind="stable") if len(columns) > 1 else slice(None)
        # np.array would take an OpenShards for a sequence.
        sources = np.fromiter([*(part.dataset.shards for part in self.parts), _Padding(self.form)], dtype=object)
        pieces = [sources[source[order]].tolist(), *(column[order].tolist() for column in bounds)]
        return pieces, offsets_of(np.bincount(place, minlength=self.num_places))

    def _padding(self) -> list[Int64s]:
        short = np.flatnonzero(self.lengths < self.form.row_tokens)
        zero = np.zeros(len(short), dtype=np.int64)
        missing = (self.form.row_tokens - self.lengths[short]) * self.form.dtype.itemsize
        return [short, zero - 1, zero, zero, missing]

    def pieces(self, first: int, end: int) -> Iterator[tuple[Any, int, int, int]]:
        """Yield what rows [first, end) are made of: (open shards, shard, first byte, end byte), in order."""
        columns, begins = self._known_pieces = self._known_pieces or self._pieces()
        part = slice(int(begins[first]), int(begins[end]))
        return zip(*[column[part] for column in columns], strict=True)

    def tokens(self, first: int, end: int) -> NDArray[Any]:
        """Return rows [first, end), (end - first, T + 1) of the stored type; padding is eot."""
        try:
            found = [opened.bytes[shard][a:b] for opened, shard, a, b in self.pieces(first, end)]
        except KeyError:  # a shard is not open
            found = _read_one_by_one(self.pieces(first, end))
        return np.frombuffer(b"".join(found), self.form.dtype).reshape(end - first, self.form.row_tokens)

    @property
    def boundaries(self) -> Boundaries:
        """Where documents and padding begin in the rows."""
        self._known_boundaries = self._known_boundaries or self._boundaries()
        return self._known_boundaries

    def _boundaries(self) -> Boundaries:
        places, marks = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        for part in self.parts:
            if part.rows.marks is not None and part.rows.mark_offsets is not None:
                places.append(np.repeat(part.places, np.diff(part.rows.mark_offsets)))
                marks.append(part.rows.marks)
        place, mark = np.concatenate(places), np.concatenate(marks)
        order = np.argsort(place, kind="stable") if len(self.parts) > 1 else slice(None)
        return Boundaries(self.form, self.lengths, place[order], mark[order])


def _read_one_by_one(pieces: Iterable[tuple[Any, int, int, int]]) -> list[Any]:
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
        inside = marks < form.seq_len
        counts = np.bincount(places[inside], minlength=len(lengths)) + 1
        rows = np.repeat(np.arange(len(lengths)), counts)
        firsts = np.zeros(len(rows), dtype=np.int64)
        # Each row has a run at 0 before its marks, so mark k of row r begins run k + r + 1.
        firsts[np.arange(int(inside.sum())) + places[inside] + 1] = marks[inside]
        #: (num_rows + 1,) runs, of one document or of padding, before each row
        self._row_runs = offsets_of(counts)
        self._runs = rows * form.seq_len + firsts
        self._shifts = -firsts.astype(np.int32)  # from a token's place in the row to that in its document
        self._run_lengths = np.diff(self._runs, append=len(lengths) * form.seq_len)
        self._added = {"document_ids": np.zeros(1, np.int32), "position_ids": np.arange(form.seq_len, dtype=np.int32)}
        ids = np.arange(len(rows)) - self._row_runs[rows]
        self._ids = np.where(firsts >= lengths[rows], -1, ids).astype(np.int32)
        self._ignored = self._ignored_labels(lengths, places, marks)

    def _ignored_labels(self, lengths: Int64s, places: Int64s, marks: Int64s) -> Int64s:
        """Return the flat places of labels that no loss may count, ascending."""
        seq_len, shift = self._form.seq_len, int(self._form.labels == "shifted")
        first = np.clip(lengths - shift, 0, seq_len)  # label without a token
        padding = ranges(np.arange(len(lengths)) * seq_len + first, seq_len - first)
        if not self._form.mask_documents:
            return padding
        labels = marks - shift
        begins: Int64s = (places * seq_len + labels)[labels < seq_len]
        return np.union1d(padding, begins) if len(padding) else begins

    def write(self, field: str, first: int, end: int, out: NDArray[np.int32]) -> None:
        """Write a field of rows [first, end) to `out`, (end - first, T).

        "document_ids" are each token's document, from 0 in every row, -1 for padding; "position_ids" its place in its
        document within the row, from 0.
        """
        num_rows = max(1, _TOKENS_AT_A_TIME // self._form.seq_len)
        for row in range(first, end, num_rows):
            self._write(field, row, min(row + num_rows, end), out[row - first :][:num_rows])

    def _write(self, field: str, first: int, end: int, out: NDArray[np.int32]) -> None:
        runs = slice(self._row_runs[first], self._row_runs[end])
        of_runs = self._ids if field == "document_ids" else self._shifts
        spread = np.repeat(of_runs[runs], self._run_lengths[runs]).reshape(out.shape)
        np.add(spread, self._added[field], out=out)

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


def widen(form: BatchFormat, tokens: NDArray[Any], out: NDArray[np.int64]) -> None:
    """Write inputs and labels of n batches, (n, 2, B, T), from their rows, (n * B, T + 1) tokens in stored width."""
    row, token = tokens.strides
    shift = token if form.labels == "shifted" else 0
    strides = (out.shape[2] * row, shift, row, token)
    np.copyto(out, np.ndarray(out.shape, tokens.dtype, tokens, strides=strides))  # one call for all
