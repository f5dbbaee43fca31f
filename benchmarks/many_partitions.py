"""Measure a build of many tiny partitions, for orchestration.py: task runs, and cost against a direct build."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    TaskRunFilter,
    TaskRunFilterName,
)
from prefect.client.schemas.sorting import FlowRunSort
from prefect.settings import PREFECT_API_URL, temporary_settings

from figures import Figure
from up_processes import Ran, Up, cpu_seconds, running_up, watched

ROWS = 4  # per file
SETTLE_SECONDS = 3.0  # without a new task run


@dataclass(frozen=True)
class Pair:
    """The same build run directly and through the flow, with the server's processor time during the flow."""

    direct: Ran
    flow: Ran
    server_cpu: float

    @property
    def added_wall(self) -> float:
        """The seconds that the flow adds."""
        return self.flow.wall - self.direct.wall

    @property
    def flow_cpu(self) -> float:
        """Processor time of the flow, its workers and the server."""
        return self.flow.cpu + self.server_cpu

    @property
    def added_cpu(self) -> float:
        """The seconds of processor time that the flow adds."""
        return self.flow_cpu - self.direct.cpu

    @property
    def added_mb(self) -> float:
        """The memory of the flow's process beyond that of the direct one."""
        return self.flow.peak_mb - self.direct.peak_mb


def measure_partitions(folder: Path, num_partitions: int, rounds: int, num_workers: int) -> list[Figure]:
    """Build many files and one file, alternately directly and through the flow."""
    write_files(folder / "many", num_partitions)
    write_files(folder / "one", 1)
    ones, pairs, task_runs, growths = [], [], [], []
    with running_up(folder) as up, temporary_settings({PREFECT_API_URL: up.api}):
        run_pair(up, folder, "one", "warm-up", num_workers)
        for number in range(rounds):
            ones.append(run_pair(up, folder, "one", f"one-{number}", num_workers))
            pairs.append(run_pair(up, folder, "many", f"many-{number}", num_workers))
            run = last_run()
            task_runs.append(float(count_task_runs(run)))
            growths.append(pairs[-1].flow.growth_mb(first_start(run, "tokenize")))
    return [Figure("task runs", "", task_runs, "<= 500"), *cost(pairs, ones), *memory(pairs, ones, growths)]


def cost(pairs: list[Pair], ones: list[Pair]) -> list[Figure]:
    """Return what the flow adds, in total and beyond its fixed cost, which is that of a build of one file."""
    both = list(zip(pairs, ones, strict=True))
    running = [(pair.added_wall - one.added_wall) / pair.flow.wall for pair, one in both]
    running_cpu = [(pair.added_cpu - one.added_cpu) / pair.flow_cpu for pair, one in both]
    return [
        Figure("direct", "s", [pair.direct.wall for pair in pairs]),
        Figure("flow", "s", [pair.flow.wall for pair in pairs]),
        Figure("one file: what the flow adds", "s", [one.added_wall for one in ones]),
        Figure("orchestration", "of the flow's time", running, "<= 0.2"),
        Figure("all that the flow adds", "of the flow's time", [pair.added_wall / pair.flow.wall for pair in pairs]),
        Figure("direct: processor time", "s", [pair.direct.cpu for pair in pairs]),
        Figure("flow: processor time, server included", "s", [pair.flow_cpu for pair in pairs]),
        Figure("flow: processor time of the server", "s", [pair.server_cpu for pair in pairs]),
        Figure("one file: processor time that the flow adds", "s", [one.added_cpu for one in ones]),
        Figure("orchestration, in processor time", "of the flow's", running_cpu, "<= 0.2"),
    ]


def memory(pairs: list[Pair], ones: list[Pair], growths: list[float]) -> list[Figure]:
    """Return the memory of the build processes, without their workers."""
    added = [pair.added_mb - one.added_mb for pair, one in zip(pairs, ones, strict=True)]
    return [
        Figure("direct: most memory", "MB", [pair.direct.peak_mb for pair in pairs]),
        Figure("flow: most memory", "MB", [pair.flow.peak_mb for pair in pairs]),
        Figure("flow: growth after the first tokenize task", "MB", growths, "<= 50"),
        Figure("flow: memory beyond direct's, and beyond that of one file", "MB", added),
    ]


def write_files(folder: Path, count: int) -> None:
    """Write JSON lines files with a few rows each."""
    folder.mkdir()
    for i in range(count):
        lines = (json.dumps({"text": f"text {row} of file {i}"}) + "\n" for row in range(ROWS))
        (folder / f"{i:06}.jsonl").write_text("".join(lines))


def run_pair(up: Up, folder: Path, files: str, dataset: str, num_workers: int) -> Pair:
    """Build the files of a folder as two datasets; work that the server does afterwards counts as the flow's."""
    direct = build(up, folder, files, f"{dataset}-direct", num_workers, "--direct")
    before = cpu_seconds(up.server)
    flow = build(up, folder, files, f"{dataset}-flow", num_workers)
    return Pair(direct, flow, cpu_seconds(up.server) - before)


def build(up: Up, folder: Path, files: str, dataset: str, num_workers: int, *options: str) -> Ran:
    """Run `tokenloom build` for the files of a folder."""
    spec = folder / f"{dataset}.json"
    sources = [{"kind": "jsonl", "path": f"{folder}/{files}/*.jsonl"}]
    fields = {"dataset": dataset, "store": str(folder / "store"), "sources": sources, "tokenizer": {"kind": "byte"}}
    spec.write_text(json.dumps(fields))
    command = [sys.executable, "-m", "tokenloom", "build", str(spec), "--workers", str(num_workers), *options]
    return watched(command, os.environ | {"PREFECT_API_URL": up.api, "PREFECT_HOME": str(folder / "prefect")})


def last_run() -> UUID:
    """Return the newest flow run."""
    with get_client(sync_client=True) as client:
        return client.read_flow_runs(sort=FlowRunSort.EXPECTED_START_TIME_DESC, limit=1)[0].id


def count_task_runs(run: UUID) -> int:
    """Return the number of task runs of a flow run, once the server has stored all of them."""
    count, since = -1, time.monotonic()
    with get_client(sync_client=True) as client:
        while time.monotonic() - since < SETTLE_SECONDS:
            body = {"flow_runs": {"id": {"any_": [str(run)]}}}
            found = int(client._client.post("/task_runs/count", json=body).json())
            if found != count:
                count, since = found, time.monotonic()
            time.sleep(0.2)
    return count


def first_start(run: UUID, step: str) -> float:
    """Return the time at which the first task of a step started."""
    with get_client(sync_client=True) as client:
        task_runs = client.read_task_runs(
            flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run])),
            task_run_filter=TaskRunFilter(name=TaskRunFilterName(like_=f"{step} ")),
        )
    return min(each.start_time.timestamp() for each in task_runs if each.start_time)
