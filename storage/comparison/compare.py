"""Compare the documents of two versions, and count what became of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tokenloom.storage.comparison.matching import Fates, match
from tokenloom.storage.comparison.rows import Documents, Rows
from tokenloom.storage.comparison.streams import Advance, by_content, by_key, have_one_order
from tokenloom.storage.formats.arrays import Int64s, UInt64s

FATES = ("added", "removed", "kept", "moved")


def compare(a: Documents, b: Documents, advance: Advance) -> Iterator[Fates]:
    """Yield what became of the documents from A to B, some texts at a time; every document comes once.

    Args:
        a: the documents of the old version.
        b: those of the new one.
        advance: called with the number of rows that were read.
    """
    pieces = by_key if have_one_order(a, b) else by_content
    names = sorted({*a.splits, *b.splits})
    splits_a, splits_b = numbers_of(a.splits, names), numbers_of(b.splits, names)
    for rows_a, rows_b in pieces(a, b, advance):
        yield match(rows_a, rows_b, splits_a, splits_b)


class Tally:
    """Counts documents and tokens by fate, by source, and by the splits between which they moved.

    Documents that were removed count with their tokens and source in A, all others with those in B.
    """

    def __init__(self, a: Documents, b: Documents) -> None:
        self.sources = sorted({*a.input_sources, *b.input_sources})
        self.splits = sorted({*a.splits, *b.splits})
        self._sources_a, self._sources_b = (numbers_of(side.input_sources, self.sources) for side in (a, b))
        self._splits_a, self._splits_b = (numbers_of(side.splits, self.splits) for side in (a, b))
        self.by_source = np.zeros((len(FATES), len(self.sources), 2), np.int64)  # documents and tokens
        self.moves = np.zeros((len(self.splits), len(self.splits), 2), np.int64)  # from split, to split

    def add(self, fates: Fates) -> None:
        """Count documents."""
        for number, name in enumerate(FATES):
            rows: Rows = getattr(fates, name)
            sources = self._sources_a if name == "removed" else self._sources_b
            self.by_source[number] += _sums(sources[rows["input"]], rows, len(self.sources))
        if len(fates.moved):
            count = len(self.splits)
            old, new = self._splits_a[fates.moved_from["split"]], self._splits_b[fates.moved["split"]]
            self.moves += _sums(old * np.uint64(count) + new, fates.moved, count**2).reshape(count, count, 2)


def numbers_of(names: Sequence[str], all_names: Sequence[str]) -> UInt64s:
    """Return the position of each name in `all_names`."""
    numbers = {name: number for number, name in enumerate(all_names)}
    return np.array([numbers[name] for name in names], np.uint64)


def _sums(labels: UInt64s, rows: Rows, count: int) -> Int64s:
    """Return (count, 2): the documents and the tokens of each label in [0, count)."""
    labels = labels.astype(np.intp)
    tokens = np.bincount(labels, rows["num_tokens"], count)  # exact: below 2**53
    return np.stack([np.bincount(labels, minlength=count), tokens.astype(np.int64)], axis=1)
