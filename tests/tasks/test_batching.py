"""Jobs are batched into a limited number of tasks, in order."""

from __future__ import annotations

import pytest

from tokenloom.tasks.running.batching import WeightedJob, batch_jobs


@pytest.mark.parametrize("num_jobs", [1, 399, 400, 401, 799, 1000, 10_000])
@pytest.mark.parametrize("num_workers", [0, 2, 512])
@pytest.mark.parametrize("weight", [0, 1, 3])
def test_a_step_has_at_most_max_tasks_tasks(num_jobs: int, num_workers: int, weight: int) -> None:
    groups = batch_jobs([WeightedJob("", i, weight) for i in range(num_jobs)], num_workers, 1, max_tasks=400)
    assert [job for _, jobs in groups for job in jobs] == list(range(num_jobs))
    assert len(groups) <= 400
