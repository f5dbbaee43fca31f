"""Runs of neighbouring items."""

from __future__ import annotations

import numpy as np
import pytest

from tokenloom.storage.formats.arrays import runs_of


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
