"""A build of many tiny partitions through a server: task runs, memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, TaskRunFilter, TaskRunFilterName
from prefect.client.schemas.sorting import FlowRunSort
from prefect.settings import PREFECT_API_URL, temporary_settings

from tests.builders.datasets import make_spec, write_jsonl
from tests.counts import full_only
from tests.servers.running import running_up


def resident_mb(process: int) -> float:
    """Return the resident memory of a process; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")), 0.0)


def num_task_runs(run: UUID) -> int:
    """Return the number of task runs of a flow run, once no more arrive."""
    counts, body = [-1] * 10, {"flow_runs": {"id": {"any_": [str(run)]}}}
    with get_client(sync_client=True) as client:
        while len(set(counts[-10:])) > 1 or counts[-1] < 0:
            counts.append(int(client.request("POST", "/task_runs/count", json=body).json()))
            time.sleep(0.3)
    return counts[-1]


def memory_of(command: list[str], environment: dict[str, str]) -> Iterator[tuple[float, float]]:
    """Run a command, which must succeed; yield the time and its resident memory in MB every 50 ms."""
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        yield time.time(), resident_mb(process.pid)
        time.sleep(0.05)
    assert process.returncode == 0


@pytest.mark.timeout(900)
@full_only
def test_a_build_of_many_tiny_partitions_needs_few_task_runs_and_little_memory(tmp_path: Path, migrated: Path) -> None:
    """In the reduced run, flows/test_build_dataset.py counts the task runs of 300 partitions."""
    for i in range(10_000):
        write_jsonl(tmp_path / "input" / f"{i}.jsonl", [f"text {row} of file {i}" for row in range(4)])
    spec = make_spec(tmp_path / "store", [{"kind": "jsonl", "path": str(tmp_path / "input" / "*.jsonl")}])
    (tmp_path / "spec.json").write_text(spec.model_dump_json(exclude={"credentials", "runner"}))
    command = [sys.executable, "-m", "tokenloom", "build", str(tmp_path / "spec.json"), "--workers", "2"]
    with running_up(tmp_path, f"mark-{uuid4()}", migrated) as (_, url), temporary_settings({PREFECT_API_URL: url}):
        memory = list(memory_of(command, os.environ | {"PREFECT_API_URL": url, "PREFECT_HOME": str(tmp_path / "home")}))
        with get_client(sync_client=True) as client:
            (run,) = client.read_flow_runs(sort=FlowRunSort.EXPECTED_START_TIME_DESC, limit=1)
            assert 10 < num_task_runs(run.id) <= 500
            tokenizing = client.read_task_runs(
                flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run.id])),
                task_run_filter=TaskRunFilter(name=TaskRunFilterName(like_="tokenize ")),
            )
    start = min(each.start_time.timestamp() for each in tokenizing if each.start_time)
    before = [mb for moment, mb in memory if moment <= start]
    assert max(mb for moment, mb in memory if moment >= start) - before[-1] <= 50
