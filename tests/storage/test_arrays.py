"""Runs of neighbouring items, and ranges."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.storage.formats.arrays import ranges_of, runs_of
from tokenloom.storage.stores.store import join_ranges


@pytest.mark.parametrize("seed", range(20))
def test_a_run_takes_items_until_the_next_would_be_too_much(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 8, rng.integers(0, 30)).tolist()
    expected: list[list[int]] = []
    for index, size in enumerate(sizes):
        if not expected or sum(sizes[i] for i in expected[-1]) + size > 6:
            expected.append([])
        expected[-1].append(index)
    runs = runs_of(np.cumsum([0, *sizes]), 6)
    assert [list(range(start, end)) for start, end in runs] == expected


@given(counts=st.lists(st.integers(0, 5), max_size=20))
def test_ranges_count_up_from_0(counts: list[int]) -> None:
    assert ranges_of(np.array(counts, np.int64)).tolist() == [i for count in counts for i in range(count)]


@given(
    ranges=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)).map(lambda pair: (pair[0], sum(pair)))),
    max_gap=st.integers(0, 9),
    max_size=st.integers(1, 9),
)
def test_joined_ranges_hold_the_ranges_and_the_small_gaps_between_them(
    ranges: list[tuple[int, int]], max_gap: int, max_size: int
) -> None:
    ranges = sorted(each for each in ranges if each[0] < each[1])
    joined = join_ranges(ranges, max_gap, max_size)
    held = {i for start, end in ranges for i in range(start, end)}
    gaps = {i for a in held for b in held if 0 < b - a - 1 <= max_gap for i in range(a, b)}
    assert [i for start, end in joined for i in range(start, end)] == sorted(held | gaps)
    assert all(0 < end - start <= max_size for start, end in joined)
    assert all(a + max_size == b for (a, b), (after, _) in itertools.pairwise(joined) if b == after)
