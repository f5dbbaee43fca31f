"""Measure many builds through one server, for orchestration.py: database locks, memory of server and worker."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.client.schemas.objects import FlowRun
from prefect.settings import PREFECT_API_URL, temporary_settings

from figures import Figure
from tokenloom.storage.versions.published import published_versions
from tokenloom.storage.versions.references import dataset_store
from up_processes import Up, resident_mb, running_up

WARM_BUILDS = 5  # memory is compared from then on
WAIT_SECONDS = 600
LOCKED = "database is locked"


@dataclass
class Turns:
    """The results of builds: their runs and, for each turn, the seconds per build and the MB of worker and server."""

    runs: list[FlowRun] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    worker_mb: list[float] = field(default_factory=list)
    server_mb: list[float] = field(default_factory=list)


def measure_builds(folder: Path, num_builds: int, at_once: int) -> list[Figure]:
    """Trigger builds one after another, or several at a time; return their time and memory."""
    with running_up(folder, "--runs", str(at_once)) as up:
        turns = run_builds(up, folder, num_builds, at_once)
    store = str(folder / "store")
    versions = [published_versions(dataset_store(store, f"build-{i}")) for i in range(num_builds)]
    warm = min(WARM_BUILDS // at_once, len(turns.seconds) - 1)
    worker_growth, server_growth = (max(mb[warm:]) - mb[warm] for mb in (turns.worker_mb, turns.server_mb))
    return [
        Figure("builds that did not complete", "", [sum(run.state_name != "Completed" for run in turns.runs)], "0"),
        Figure("builds that published no version", "", [versions.count([])], "0"),
        Figure("seconds per build, from the trigger to the end", "s", turns.seconds),
        Figure("seconds of a flow run", "s", [run.total_run_time.total_seconds() for run in turns.runs]),
        Figure("worker", "MB", turns.worker_mb),
        Figure("worker: growth after the fifth build", "MB", [worker_growth], "<= 50"),
        Figure("server", "MB", turns.server_mb),
        Figure("server: growth after the fifth build", "MB", [server_growth]),
        Figure(f"'{LOCKED}' in logs and states", "", [float(count_locked(up.home))], "0"),
    ]


def run_builds(up: Up, folder: Path, num_builds: int, at_once: int) -> Turns:
    """Trigger builds, `at_once` per turn, and wait until they end."""
    turns = Turns()
    with temporary_settings({PREFECT_API_URL: up.api}), get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name("build-dataset/build-dataset").id
        client.update_deployment(deployment, DeploymentUpdate(concurrency_limit=at_once))
        for first in range(0, num_builds, at_once):
            asked = [parameters(folder, i) for i in range(first, min(first + at_once, num_builds))]
            begin = time.perf_counter()
            runs = [client.create_flow_run_from_deployment(deployment, parameters=each).id for each in asked]
            turns.runs += [wait_for(client, run) for run in runs]
            turns.seconds.append((time.perf_counter() - begin) / len(runs))
            turns.worker_mb.append(resident_mb(up.worker))
            turns.server_mb.append(resident_mb(up.server))
    return turns


def parameters(folder: Path, number: int) -> dict[str, Any]:
    """Write the input of a small dataset; return the parameters of a run that builds it."""
    path = folder / f"input-{number}.parquet"
    pq.write_table(pa.table({"text": [f"text {row} of build {number}" for row in range(200)]}), path)
    spec = {
        "dataset": f"build-{number}",
        "store": str(folder / "store"),
        "sources": [{"kind": "parquet", "path": str(path)}],
        "tokenizer": {"kind": "byte"},
        "runner": {"kind": "process", "workers": 1},
    }
    return {"spec": spec}


def wait_for(client: SyncPrefectClient, run: UUID) -> FlowRun:
    """Wait until a run has ended and return it."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        found = client.read_flow_run(run)
        if found.state and found.state.is_final():
            return found
        time.sleep(0.2)
    raise SystemExit(f"flow run {run} did not end in {WAIT_SECONDS} s")


def count_locked(home: Path) -> int:
    """Return how often a database lock is reported: in the logs of server, worker and runs, and in states."""
    logs = sum((home / name).read_text().count(LOCKED) for name in ("server.log", "worker.log"))
    database = sqlite3.connect(home / "prefect.db")
    try:
        for table in ("log", "flow_run_state", "task_run_state"):
            ((count,),) = database.execute(f"select count(*) from {table} where message like ?", [f"%{LOCKED}%"])
            logs += count
    finally:
        database.close()
    return logs
