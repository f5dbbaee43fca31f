"""Rows: where the tokens of samples are, where documents begin in them, and the fields and ignored labels that follow.

A sample is cut from a row of at most T + 1 tokens: its inputs are row[:-1], its labels row[1:]. This module reads no
tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenloom.reader.shards.batch_format import BatchFormat
from tokenloom.storage.formats.arrays import Int32s, Int64s

_TOKENS_AT_A_TIME = 2**17  # the system reclaims the memory of larger temporary arrays, and each new one faults again


@dataclass(frozen=True)
class RowPieces:
    """The pieces of n rows: piece k of row r is entry `row_offsets[r] + k` of the arrays below.

    A mark is the index of a token in a row, in [1, T], that begins a document or padding. The marks of row r are
    `marks[mark_offsets[r]:mark_offsets[r + 1]]`; both arrays are None if the batch format does not need them.
    """

    row_offsets: Int64s  # (n + 1,)
    shards: Int64s  # (p,) index of the shard in the split; -1 for padding between documents
    starts: Int64s  # (p,) first token in the shard; 0 in padding
    lengths: Int64s  # (p,) tokens
    mark_offsets: Int64s | None = None  # (n + 1,)
    marks: Int64s | None = None  # (m,)

    def __len__(self) -> int:
        return len(self.row_offsets) - 1


def ranges(starts: Int64s, lengths: Int64s) -> Int64s:
    """Return the integers of [start, start + length) for each of n ranges, concatenated.

    Example: [5, 9], [2, 3] -> [5, 6, 9, 10, 11]
    """
    ends = np.cumsum(lengths)
    shifts: Int64s = np.repeat(starts - (ends - lengths), lengths)
    return np.arange(len(shifts), dtype=np.int64) + shifts


def offsets_of(lengths: Int64s) -> Int64s:
    """Return the (n + 1,) offsets of parts with these (n,) lengths: [2, 3] -> [0, 2, 5]."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)])


def join_groups(groups: Iterable[Sequence[Int64s]], num_rows: int) -> list[Int64s]:
    """Return the entries of several groups of rows in the order of the rows.

    Args:
        groups: (rows, offsets, *columns), at least one; entry k of row rows[i] is entry offsets[i] + k of each column.
        num_rows: the number of rows in all groups; each row is in exactly one.

    Returns:
        The offsets, (num_rows + 1,), and the columns.
    """
    rows, offsets, *columns = zip(*groups, strict=True)
    sizes = [len(first) for first in columns[0]]
    counts, firsts = np.zeros(num_rows, dtype=np.int64), np.zeros(num_rows, dtype=np.int64)
    place = np.concatenate(rows)
    counts[place] = np.concatenate([np.diff(each) for each in offsets])
    firsts[place] = np.concatenate([each[:-1] for each in offsets]) + np.repeat(
        np.cumsum(sizes) - sizes, [len(each) for each in rows]
    )
    order = ranges(firsts, counts)
    return [offsets_of(counts), *(np.concatenate(column)[order] for column in columns)]


def pad_pieces(
    row_offsets: Int64s, shards: Int64s, starts: Int64s, lengths: Int64s, form: BatchFormat
) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """Return the pieces of rows, see RowPieces, with the padding of each document as a piece of its own after it."""
    # A piece of T + 1 tokens has T inputs, a multiple already.
    missing = np.where(lengths < form.row_tokens, -lengths % form.pad_documents, 0)
    short = np.flatnonzero(missing)
    return (
        row_offsets + np.searchsorted(short, row_offsets),
        np.insert(shards, short + 1, -1),
        np.insert(starts, short + 1, 0),
        np.insert(lengths, short + 1, missing[short]),
    )


def marks_inside(offsets: NDArray[np.uint64], starts: Int64s, lengths: Int64s) -> tuple[Int64s, Int64s]:
    """Return where documents begin inside rows of one piece each.

    Args:
        offsets: the document offsets of the shard.
        starts, lengths: (n,) first token of each row in the shard, and number of tokens; ascending starts are faster.

    Returns:
        The offsets of the marks, (n + 1,), and the marks, each in [1, length).
    """
    first = np.searchsorted(offsets, (starts + 1).astype(np.uint64))
    counts = np.searchsorted(offsets, (starts + lengths).astype(np.uint64)) - first
    marks = offsets[ranges(first, counts)].astype(np.int64)
    return offsets_of(counts), marks - np.repeat(starts, counts)


def marks_between(row_offsets: Int64s, lengths: Int64s, row_tokens: int) -> tuple[Int64s, Int64s]:
    """Return where pieces end inside rows of whole pieces: a document or the padding begins there.

    Args:
        row_offsets: (n + 1,) offsets of each row's pieces.
        lengths: (p,) tokens of each piece.
        row_tokens: T + 1; there is no mark at or after the end of a row.

    Returns:
        The offsets of the marks, (n + 1,), and the marks, each in [1, row_tokens).
    """
    ends = np.cumsum(lengths)
    before = offsets_of(lengths)[row_offsets[:-1]]
    marks = ends - np.repeat(before, np.diff(row_offsets))
    inside = marks < row_tokens
    kept = offsets_of(inside.astype(np.int64))[row_offsets]
    return kept, marks[inside]


class Boundaries:
    """Where documents and padding begin in n rows; gives the fields and the ignored labels of any range of rows.

    A run is the part of a row that belongs to one document, with the padding that makes it a multiple of
    `pad_documents`; or it is the padding at the end of the row.

    Args:
        form: what a batch holds.
        lengths: (n,) tokens in each row; padding follows them.
        rows, marks: (m,) for each document or padding that begins inside a row: the row, and the token in [1, T] that
            begins it; sorted by row, then mark.
    """

    def __init__(self, form: BatchFormat, lengths: Int64s, rows: Int64s, marks: Int64s) -> None:
        self._form = form
        self._ignored = self._ignored_labels(lengths, rows, marks)
        if form.pad_documents > 1:
            begins_run = marks % form.pad_documents == 0
            rows, marks = rows[begins_run], marks[begins_run]
        inside = marks < form.seq_len
        counts = np.bincount(rows[inside], minlength=len(lengths)) + 1
        row_of_run = np.repeat(np.arange(len(lengths)), counts)
        firsts = np.zeros(len(row_of_run), dtype=np.int64)
        # Each row has a run at token 0 before its marks, so mark k of row r begins run k + r + 1.
        firsts[np.arange(int(inside.sum())) + rows[inside] + 1] = marks[inside]
        #: (num_rows + 1,) the number of runs before each row
        self._row_runs = offsets_of(counts)
        self._runs = row_of_run * form.seq_len + firsts
        self._shifts = -firsts.astype(np.int32)  # added to a position in a row: the position in the document
        self._run_lengths = np.diff(self._runs, append=len(lengths) * form.seq_len)
        self._added = {"document_ids": np.zeros(1, np.int32), "position_ids": np.arange(form.seq_len, dtype=np.int32)}
        ids = np.arange(len(row_of_run)) - self._row_runs[row_of_run]
        self._ids = np.where(firsts >= lengths[row_of_run], -1, ids).astype(np.int32)

    def _ignored_labels(self, lengths: Int64s, rows: Int64s, marks: Int64s) -> Int64s:
        """Return the positions, in the flattened rows, of the labels that losses must ignore, ascending."""
        seq_len, shift = self._form.seq_len, self._form.shift
        first = np.clip(lengths - shift, 0, seq_len)  # the first label that has no token
        padding = ranges(np.arange(len(lengths)) * seq_len + first, seq_len - first)
        if self._form.pad_documents > 1:
            missing = -marks % self._form.pad_documents
            padding = np.sort(np.concatenate([padding, ranges(rows * seq_len + marks - shift, missing)]))
        if self._form.learn is not None:
            padding = padding[:0]  # its class keeps it out
        if not self._form.mask_documents:
            return padding
        labels = marks - shift
        begins: Int64s = (rows * seq_len + labels)[labels < seq_len]
        if not len(padding):
            return begins
        # Both ascend. np.union1d would take half a minute for 30 M positions: newer releases of numpy hash them.
        at = np.searchsorted(padding, begins)
        is_new = padding[np.minimum(at, len(padding) - 1)] != begins
        return np.insert(padding, at[is_new], begins[is_new])

    def write(self, field: str, first: int, end: int, out: Int32s) -> None:
        """Write a field of rows [first, end) to `out`, (end - first, T).

        "document_ids" number the documents of a row from 0, with -1 for padding; "position_ids" count a token's
        position from the first token of its document in the row.
        """
        num_rows = max(1, _TOKENS_AT_A_TIME // self._form.seq_len)
        for row in range(first, end, num_rows):
            self._write(field, row, min(row + num_rows, end), out[row - first :][:num_rows])

    def _write(self, field: str, first: int, end: int, out: Int32s) -> None:
        runs = slice(self._row_runs[first], self._row_runs[end])
        of_runs = self._ids if field == "document_ids" else self._shifts
        spread = np.repeat(of_runs[runs], self._run_lengths[runs]).reshape(out.shape)
        np.add(spread, self._added[field], out=out)

    def ignored_labels(self, first: int, end: int) -> Int64s:
        """Return the positions, in rows [first, end) flattened, of the labels that losses must ignore."""
        begin, stop = first * self._form.seq_len, end * self._form.seq_len
        a, b = np.searchsorted(self._ignored, (begin, stop))
        return self._ignored[a:b] - begin

    def sequences(self, first: int, end: int) -> tuple[Int32s, int]:
        """Return cu_seqlens and max_seqlen of rows [first, end) flattened: the (num_runs + 1,) offsets of the runs.

        With a fixed length, empty runs at the end follow; raises ValueError if the runs are too many for it.
        """
        begin, stop = first * self._form.seq_len, end * self._form.seq_len
        runs = self._runs[self._row_runs[first] : self._row_runs[end]]
        offsets = np.append(runs - begin, stop - begin).astype(np.int32)
        fixed = self._form.cu_seqlens_length or len(offsets)
        if len(offsets) > fixed:
            raise ValueError(
                f"cu_seqlens_length={fixed:,} is the most numbers of a batch, one more than its documents and "
                f"paddings; this one has {len(offsets):,}: pass at least so many"
            )
        return np.pad(offsets, (0, fixed - len(offsets)), "edge"), int(np.diff(offsets).max())
