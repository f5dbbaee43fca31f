"""Ranges of a file that are read together."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tokenloom.storage.stores.store import join_ranges


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
