"""Many builds through one server, and a build of many tiny partitions: benchmarks/orchestration.py, its counts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.counts import count, full_only
from tokenloom.tasks.running.batching import WeightedJob, batch_jobs

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "orchestration.py"


def measured(folder: Path, *options: str) -> dict[str, list[float]]:
    """Run the benchmark; return the values of its figures by name."""
    output = folder / "figures.json"
    command = [sys.executable, str(PROGRAM), *options, "--folder", str(folder), "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {figure["name"]: figure["values"] for figure in json.loads(output.read_text())["figures"]}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@full_only
@pytest.mark.parametrize("at_once", [1, 4])
def test_many_builds_through_one_server_cause_no_locks_and_keep_the_worker_small(tmp_path: Path, at_once: int) -> None:
    """In the reduced run, the tests that share one server show that it locks nothing."""
    figures = measured(tmp_path, "builds", "--builds", "50", "--at-once", str(at_once))
    assert figures["builds that did not complete"] == [0]
    assert figures["builds that published no version"] == [0]
    assert figures["'database is locked' in logs and states"] == [0]
    assert figures["worker: growth after the fifth build"][0] <= 50


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_build_of_many_tiny_partitions_needs_few_task_runs_and_little_memory(tmp_path: Path) -> None:
    num_partitions, most = count(300, 10_000), count(100, 500)  # a task for each checked file would be too many
    figures = measured(tmp_path, "partitions", "--partitions", str(num_partitions), "--rounds", "1")
    assert 10 < figures["task runs"][0] <= most
    assert figures["flow: growth after the first tokenize task"][0] <= 50


@pytest.mark.parametrize("num_jobs", [1, 399, 400, 401, 799, 1000, 10_000])
@pytest.mark.parametrize("num_workers", [0, 2, 512])
@pytest.mark.parametrize("weight", [0, 1, 3])
def test_a_step_has_at_most_max_tasks_tasks(num_jobs: int, num_workers: int, weight: int) -> None:
    groups = batch_jobs([WeightedJob("", i, weight) for i in range(num_jobs)], num_workers, 1, max_tasks=400)
    assert [job for _, jobs in groups for job in jobs] == list(range(num_jobs))
    assert len(groups) <= 400
