"""Rows: where the tokens of samples are, and where documents begin in them. This module reads no tokens.

A sample is cut from a row of at most T + 1 tokens: its inputs are row[:-1], its labels row[1:].
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenloom.storage.formats.arrays import Int64s


@dataclass(frozen=True)
class RowPieces:
    """The pieces of n rows: piece k of row r is entry `row_offsets[r] + k` of the arrays below.

    A mark is the index of a token in a row, in [1, T], that begins a document or the padding. The marks of row r are
    `marks[mark_offsets[r]:mark_offsets[r + 1]]`; both arrays are None if the batch format does not need them.
    """

    row_offsets: Int64s  # (n + 1,)
    shards: Int64s  # (p,) index of the shard in the split
    starts: Int64s  # (p,) first token in the shard
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
