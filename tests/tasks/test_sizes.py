"""The arithmetic of sizes: runs, pieces and tasks."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tokenloom.tasks import sizes


@pytest.mark.parametrize("fan_in", [2, 4, 1024])
def test_runs_have_all_spills_once_and_in_order_and_no_more_than_may_be_read(
    monkeypatch: pytest.MonkeyPatch, fan_in: int
) -> None:
    monkeypatch.setattr(sizes, "MAX_FAN_IN", fan_in)
    assert sizes.runs_of(fan_in) == []
    for num_spills in [*range(fan_in + 1, 3 * fan_in**2 // 2 + 2, 1 + fan_in**2 // 300), sizes.MAX_SPILLS]:
        runs = sizes.runs_of(num_spills)
        assert (runs[0][0], runs[-1][1]) == (0, num_spills)
        assert all(end == start for (_, end), (start, _) in pairwise(runs))
        assert all(0 < end - first <= fan_in for first, end in runs)
        if num_spills <= fan_in**2:
            assert len(runs) <= fan_in
