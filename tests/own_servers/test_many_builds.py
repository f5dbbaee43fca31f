"""Many builds through one server, and a build of many tiny partitions: benchmarks/orchestration.py, its counts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.counts import full_only

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "orchestration.py"


def measured(folder: Path, *options: str) -> dict[str, list[float]]:
    """Run the benchmark; return the values of its figures by name."""
    output = folder / "figures.json"
    command = [sys.executable, str(PROGRAM), *options, "--folder", str(folder), "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {figure["name"]: figure["values"] for figure in json.loads(output.read_text())["figures"]}


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


@pytest.mark.timeout(900)
@full_only
def test_a_build_of_many_tiny_partitions_needs_few_task_runs_and_little_memory(tmp_path: Path) -> None:
    """In the reduced run, flows/test_build_dataset.py counts the task runs of 300 partitions."""
    figures = measured(tmp_path, "partitions", "--partitions", "10000", "--rounds", "1")
    assert 10 < figures["task runs"][0] <= 500
    assert figures["flow: growth after the first tokenize task"][0] <= 50
