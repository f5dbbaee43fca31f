"""Compare the documents of two versions by content, and count which were kept, moved, added and removed.

A document of A and one of B match if their texts are equal. With kept duplicates, a text that A has n times and B m
times has min(n, m) matches: first as many as possible within a split, these are kept, then across splits, these moved.
What is left of A was removed, what is left of B was added. Copies of a text are interchangeable: those at the end of
the order stay without a match.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenloom.storage.comparison.documents import Advance, Documents, Rows, by_content, by_key, have_one_order
from tokenloom.storage.formats.arrays import Int64s, UInt64s

FATES = ("added", "removed", "kept", "moved")
REMASKED = "remasked"


class Fates(NamedTuple):
    """The fates of some documents: `removed` and `moved_from` are rows of A, the others of B.

    Row i of `moved_from` became row i of `moved`. `remasked` are those of `kept` and `moved` that have as many tokens
    as before, with other classes.
    """

    added: Rows
    removed: Rows
    kept: Rows
    moved: Rows
    moved_from: Rows
    remasked: Rows


def compare(a: Documents, b: Documents, advance: Advance) -> Iterator[Fates]:
    """Yield the fates of all documents from A to B, some texts at a time; every document comes once.

    Args:
        a: the documents of the old version.
        b: those of the new one.
        advance: called with the number of rows that were read.
    """
    pieces = by_key if have_one_order(a, b) else by_content
    names = sorted({*a.splits, *b.splits})
    splits_a, splits_b = _numbers_of(a.splits, names), _numbers_of(b.splits, names)
    for rows_a, rows_b in pieces(a, b, advance):
        yield _match(rows_a, rows_b, splits_a, splits_b)


class Tally:
    """Counts documents and tokens by fate, by source, and by the splits between which they moved.

    Documents that were removed count with their tokens and source in A, all others with those in B.
    """

    def __init__(self, a: Documents, b: Documents) -> None:
        self.sources = sorted({*a.input_sources, *b.input_sources})
        self.splits = sorted({*a.splits, *b.splits})
        self._sources_a, self._sources_b = (_numbers_of(side.input_sources, self.sources) for side in (a, b))
        self._splits_a, self._splits_b = (_numbers_of(side.splits, self.splits) for side in (a, b))
        self.by_source = np.zeros((len(FATES), len(self.sources), 2), np.int64)  # documents and tokens
        self.num_remasked = 0
        self.moves = np.zeros((len(self.splits), len(self.splits), 2), np.int64)  # [split before, split after]

    def add(self, fates: Fates) -> None:
        """Count documents."""
        for number, name in enumerate(FATES):
            rows: Rows = getattr(fates, name)
            sources = self._sources_a if name == "removed" else self._sources_b
            self.by_source[number] += _sums(sources[rows["input"]], rows, len(self.sources))
        self.num_remasked += len(fates.remasked)
        if len(fates.moved):
            count = len(self.splits)
            old, new = self._splits_a[fates.moved_from["split"]], self._splits_b[fates.moved["split"]]
            self.moves += _sums(old * np.uint64(count) + new, fates.moved, count**2).reshape(count, count, 2)


def _numbers_of(names: Sequence[str], all_names: Sequence[str]) -> UInt64s:
    """Return the position of each name in `all_names`."""
    numbers = {name: number for number, name in enumerate(all_names)}
    return np.array([numbers[name] for name in names], np.uint64)


def _sums(labels: UInt64s, rows: Rows, count: int) -> Int64s:
    """Return (count, 2): the documents and the tokens of each label in [0, count)."""
    labels = labels.astype(np.intp)
    tokens = np.bincount(labels, rows["num_tokens"], count)  # exact, since sums stay below 2**53
    return np.stack([np.bincount(labels, minlength=count), tokens.astype(np.int64)], axis=1)


def _match(a: Rows, b: Rows, splits_a: UInt64s, splits_b: UInt64s) -> Fates:
    """Return the fates of all documents of A and of B with certain contents.

    Args:
        a: the documents of A, in the order of the version.
        b: those of B.
        splits_a: a number for each split of A, equal to that of B's split of the same name.
        splits_b: the same for B.
    """
    splits = np.concatenate((splits_a[a["split"]], splits_b[b["split"]]))
    content = np.concatenate((a["content"], b["content"]))
    kept_a, kept_b = _pair((splits, content[:, 1], content[:, 0]), len(a))
    rest_a, rest_b = _without(len(a), kept_a), _without(len(b), kept_b)
    content = np.concatenate((a["content"][rest_a], b["content"][rest_b]))
    moved_a, moved_b = _pair((content[:, 1], content[:, 0]), len(rest_a))
    both_a, both_b = np.append(kept_a, rest_a[moved_a]), np.append(kept_b, rest_b[moved_b])
    return Fates(
        added=b[np.delete(rest_b, moved_b)],
        removed=a[np.delete(rest_a, moved_a)],
        kept=b[np.sort(kept_b)],
        moved=b[rest_b[moved_b]],
        moved_from=a[rest_a[moved_a]],
        remasked=b[both_b[_have_other_classes(a, both_a, b, both_b)]],
    )


def _have_other_classes(a: Rows, at_a: Int64s, b: Rows, at_b: Int64s) -> NDArray[np.bool_]:
    """Return whether (n,) documents of A and B, which pair, have other classes in B: not if one side has no masks."""
    before, after = a["classes"][at_a], b["classes"][at_b]
    have_equally_many = a["num_tokens"][at_a] == b["num_tokens"][at_b]
    found: NDArray[np.bool_] = (before != after) & (before > 0) & (after > 0) & have_equally_many
    return found


def _pair(words: Sequence[UInt64s], num_a: int) -> tuple[Int64s, Int64s]:
    """Return the (k,) positions in A and in B of the items that pair: the i-th copy in A with the i-th copy in B.

    Example: _pair([[7, 7, 5, 5, 7]], 2) -> ([0], [2]): of A = [7, 7] and B = [5, 5, 7]

    Args:
        words: (n,) arrays; items are equal if all their words are. Those of A come first.
        num_a: how many of the n items are of A.
    """
    order = np.lexsort(words)  # stable: among copies, those of A come first
    if not len(order):
        return order, order
    is_first = np.zeros(len(order), dtype=bool)  # whether an item is the first of its equals
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
