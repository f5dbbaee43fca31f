"""Jobs are batched into a limited number of tasks, in order."""

from __future__ import annotations

import pytest

from tokenloom.tasks.running.steps import Job, batches_of


@pytest.mark.parametrize("num_jobs", [1, 399, 400, 401, 799, 1000, 10_000])
@pytest.mark.parametrize("num_workers", [0, 2, 512])
@pytest.mark.parametrize("weight", [0, 1, 3])
def test_a_step_has_at_most_max_tasks_tasks(num_jobs: int, num_workers: int, weight: int) -> None:
    batches = batches_of([Job("", i, weight) for i in range(num_jobs)], num_workers, 1, 400)
    assert [job.job for batch in batches for job in batch] == list(range(num_jobs))
    assert len(batches) <= 400
