"""Rows: where the tokens of some samples lie, and where documents begin in them; no token is touched here.

A row is what a sample is cut from: at most T + 1 tokens, inputs row[:-1] and labels row[1:].
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """The pieces of (n,) rows: piece k of row r is entry `row_offsets[r] + k` of the arrays below.

    `marks[mark_offsets[r]:mark_offsets[r + 1]]` are the places in row r, in [1, T], where a document or the padding
    begins; both None if nobody asked.
    """

    row_offsets: Int64s  # (n + 1,)
    shards: Int64s  # (p,) index in the split
    starts: Int64s  # (p,) tokens from the shard's start
    lengths: Int64s  # (p,) tokens
    mark_offsets: Int64s | None = None  # (n + 1,)
    marks: Int64s | None = None  # (m,)

    def __len__(self) -> int:
        return len(self.row_offsets) - 1


def ranges(starts: Int64s, lengths: Int64s) -> Int64s:
    """Return the whole numbers of [start, start + length) for each of (n,) ranges, one after the other.

    Example: [5, 9], [2, 3] -> [5, 6, 9, 10, 11]
    """
    ends = np.cumsum(lengths)
    shifts: Int64s = np.repeat(starts - (ends - lengths), lengths)
    return np.arange(len(shifts), dtype=np.int64) + shifts


def offsets_of(lengths: Int64s) -> Int64s:
    """Return the (n + 1,) offsets of parts of (n,) lengths: [2, 3] -> [0, 2, 5]."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)])


def joined(groups: Sequence[tuple[Int64s, ...]], num_rows: int) -> tuple[Int64s, Int64s, Int64s]:
    """Put the pieces of groups of rows into the order of the rows.

    Args:
        groups: (rows, offsets, starts, lengths): piece k of row rows[i] is entry offsets[i] + k.
        num_rows: rows in all; each is in exactly one group.

    Returns:
        offsets (num_rows + 1,), starts (p,), lengths (p,).
    """
    counts = np.zeros(num_rows, dtype=np.int64)
    firsts = np.zeros(num_rows, dtype=np.int64)
    before = 0
    for rows, offsets, *_ in groups:
        counts[rows] = np.diff(offsets)
        firsts[rows] = offsets[:-1] + before
        before += int(offsets[-1])
    order = ranges(firsts, counts)
    none = np.zeros(0, dtype=np.int64)
    starts, lengths = (np.concatenate([none, *(group[i] for group in groups)])[order] for i in (2, 3))
    return offsets_of(counts), starts, lengths


def cut_marks(
    groups: Iterable[tuple[Int64s, NDArray[np.uint64]]], starts: Int64s, lengths: Int64s
) -> tuple[Int64s, Int64s]:
    """Return where documents begin inside of rows that are cut from the stream of a shard, as one piece each.

    Args:
        groups: (rows, document offsets of their shard); each row is in exactly one group.
        starts, lengths: (n,) tokens of each row in its shard.

    Returns:
        (n + 1,) offsets and the marks, each in [1, length).
    """
    found: list[NDArray[np.uint64]] = [np.zeros(0, dtype=np.uint64)] * len(starts)
    for rows, offsets in groups:
        bounds = np.concatenate([starts[rows] + 1, starts[rows] + lengths[rows]]).astype(np.uint64)
        places = np.searchsorted(offsets, bounds).tolist()
        for row, first, end in zip(rows.tolist(), places, places[len(rows) :], strict=False):
            found[row] = offsets[first:end].copy()  # else all the shards would stay mapped
    counts = np.fromiter(map(len, found), np.int64, len(found))
    marks = np.concatenate([np.zeros(0, dtype=np.uint64), *found]).astype(np.int64)
    return offsets_of(counts), marks - np.repeat(starts, counts)


def marks_between(row_offsets: Int64s, lengths: Int64s, row_tokens: int) -> tuple[Int64s, Int64s]:
    """Return where pieces end inside of rows that are made of whole pieces: there a document or the padding begins.

    Args:
        row_offsets: (n + 1,) pieces of each row.
        lengths: (p,) tokens of each piece.
        row_tokens: T + 1; a mark there would be outside of the row, and is left out.

    Returns:
        (n + 1,) offsets and the marks, each in [1, row_tokens).
    """
    ends = np.cumsum(lengths)
    before = np.concatenate([np.zeros(1, dtype=np.int64), ends])[row_offsets[:-1]]
    marks = ends - np.repeat(before, np.diff(row_offsets))
    inside = marks < row_tokens
    kept = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(inside)])[row_offsets]
    return kept, marks[inside]
