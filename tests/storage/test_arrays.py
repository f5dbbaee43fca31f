"""Runs of neighbouring items, and ranges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.storage.formats.arrays import ranges_of, runs_of


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
