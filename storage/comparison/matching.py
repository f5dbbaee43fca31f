"""Match the documents of two versions by content.

A document of A and one of B match if their texts are equal. With kept duplicates, a text that A has n times and B m
times has min(n, m) matches: first as many as possible within a split, these are kept, then across splits, these moved.
What is left of A was removed, what is left of B was added. Copies of a text are interchangeable: those at the end of
the order stay without a match.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tokenloom.storage.comparison.rows import Rows
from tokenloom.storage.formats.arrays import Int64s, UInt64s


class Fates(NamedTuple):
    """What became of some documents: `removed` and `moved_from` are rows of A, the others of B.

    Row i of `moved_from` became row i of `moved`.
    """

    added: Rows
    removed: Rows
    kept: Rows
    moved: Rows
    moved_from: Rows


def match(a: Rows, b: Rows, splits_a: UInt64s, splits_b: UInt64s) -> Fates:
    """Return what became of documents: all those of A and of B with certain contents.

    Args:
        a: the documents of A, in the order of the version.
        b: those of B.
        splits_a: a number for each split of A, equal to that of B's split of the same name.
        splits_b: the same for B.
    """
    splits = np.concatenate((splits_a[a["split"]], splits_b[b["split"]]))
    content = np.concatenate((a["content"], b["content"]))
    kept_a, kept_b = pair((splits, content[:, 1], content[:, 0]), len(a))
    rest_a, rest_b = _without(len(a), kept_a), _without(len(b), kept_b)
    content = np.concatenate((a["content"][rest_a], b["content"][rest_b]))
    moved_a, moved_b = pair((content[:, 1], content[:, 0]), len(rest_a))
    return Fates(
        added=b[np.delete(rest_b, moved_b)],
        removed=a[np.delete(rest_a, moved_a)],
        kept=b[np.sort(kept_b)],
        moved=b[rest_b[moved_b]],
        moved_from=a[rest_a[moved_a]],
    )


def pair(words: Sequence[UInt64s], num_a: int) -> tuple[Int64s, Int64s]:
    """Return the (k,) positions in A and in B of the items that pair: the i-th of equal ones in A with the i-th in B.

    Example: pair([[7, 7, 5, 5, 7]], 2) -> ([0], [2]): of A = [7, 7] and B = [5, 5, 7]

    Args:
        words: (n,) arrays; items are equal if all their words are. Those of A come first.
        num_a: how many of the n items are of A.
    """
    order = np.lexsort(words)  # stable: of equal items, those of A come first
    if not len(order):
        return order, order
    is_first = np.zeros(len(order), dtype=bool)  # of its group of equal items
    is_first[0] = True
    for word in words:
        ordered = word[order]
        is_first[1:] |= ordered[1:] != ordered[:-1]
    starts, group = np.flatnonzero(is_first), np.cumsum(is_first) - 1
    is_a = order < num_a
    num_of_a = np.add.reduceat(is_a, starts, dtype=np.int64)
    num_of_b = np.diff(starts, append=len(order)) - num_of_a
    rank = np.arange(len(order)) - starts[group]
    at = np.flatnonzero(is_a & (rank < num_of_b[group]))
    return order[at], order[at + num_of_a[group[at]]] - num_a


def _without(count: int, left_out: Int64s) -> Int64s:
    """Return [0, count) without some numbers."""
    stays = np.ones(count, dtype=bool)
    stays[left_out] = False
    return np.flatnonzero(stays)
