"""`tokenloom up` when something breaks in the middle of a run, and what starts runs automatically."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterName
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.settings import PREFECT_API_URL
from prefect.states import Cancelling, Scheduled

from tests.builders.datasets import build, listed_files, local_store, write_parquet
from tests.counts import FULL, full_only
from tests.servers.processes import wait_until
from tests.servers.running import (
    Up,
    command_line,
    event,
    flow_run,
    newest_run,
    parameters,
    processes_with,
    wait_until_final,
)
from tests.up.conftest import WAITING
from tokenloom.automations import install_crash_automation
from tokenloom.examples.train_on_publish import install
from tokenloom.server.known_server import HEARTBEAT_SECONDS
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.versions.published import published_versions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def waiting_parameters(folder: Path, name: str) -> dict[str, Any]:
    """Return the parameters of a build of two files, the second of which is encoded once let_go is called."""
    asked = parameters(
        folder, name, workers=1, documents={"transform": {"function": f"{WAITING}:wait", "version": "1"}}
    )
    write_parquet(folder / "input" / name / "a.parquet", [f"first {i} of {name}" for i in range(200)])
    write_parquet(folder / "input" / name / "b.parquet", [f"second {i} of {name}" for i in range(500)])
    asked["spec"]["sources"][0]["path"] = str(folder / "input" / name / "*.parquet")
    return asked


def let_go(folder: Path, name: str) -> None:
    """Let the build of a dataset continue."""
    (folder / f"go-{name}").touch()


def started(asked: dict[str, Any]) -> FlowRun:
    """Start a build and return its run once one of its two files is encoded."""
    run: Any = run_deployment("build-dataset/build-dataset", parameters=asked, timeout=0)
    spills = local_store(asked["spec"]["store"], asked["spec"]["dataset"]).local("work/spills")
    wait_until(lambda: list(spills.glob("*.json")))
    return flow_run(run.id)


@contextmanager
def started_by_command(asked: dict[str, Any], folder: Path, mark: str) -> Iterator[FlowRun]:
    """Start a build with `tokenloom build`, as started does; end its process with the block, if it still runs."""
    spec = folder / f"{asked['spec']['dataset']}.yaml"
    spec.write_text(json.dumps(asked["spec"]))
    environment = os.environ | {"TOKENLOOM_TEST_MARK": mark, "PREFECT_API_URL": str(PREFECT_API_URL.value())}
    spills = local_store(asked["spec"]["store"], asked["spec"]["dataset"]).local("work/spills")
    command = [sys.executable, "-m", "tokenloom", "build", str(spec)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: list(spills.glob("*.json")))
            yield newest_run()
        finally:
            process.kill()


def published(asked: dict[str, Any]) -> list[str]:
    return published_versions(local_store(asked["spec"]["store"], asked["spec"]["dataset"]))


def assert_equal_to_an_undisturbed_build(asked: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    spec = BuildSpec.model_validate(asked["spec"])
    calm = spec.model_copy(update={"store": str(folder / "calm")})
    (version,) = published(asked)
    assert listed_files(spec, version) == listed_files(calm, build(calm).version)


def test_a_cancelled_run_stops_within_seconds_and_publishes_nothing(up: Up) -> None:
    folder, mark = up.folder, up.mark
    asked = waiting_parameters(folder, "cancelled")
    run = started(asked)
    num_processes = len(processes_with(mark))
    with get_client(sync_client=True) as client:  # what the button Cancel does
        client.set_flow_run_state(run.id, Cancelling())
    ended = wait_until_final(run.id)  # though its build waits for let_go
    assert ended.state is not None and ended.state.is_cancelled()
    wait_until(lambda: len(processes_with(mark)) <= num_processes - 2)  # the run and its worker process
    assert published(asked) == []
    failed = event("tokenloom.dataset.failed", "cancelled")
    assert (failed["state"], failed["flow_run_id"]) == ("cancelled", str(run.id))


def test_a_run_whose_machine_died_is_marked_as_crashed(up: Up) -> None:
    install_crash_automation(heartbeat_seconds=8)  # as `up` does with 30: a shorter test
    with started_by_command(waiting_parameters(up.folder, "command"), up.folder, up.mark) as run:
        pass  # its process is killed
    assert flow_run(run.id).state.is_running()  # type: ignore[union-attr]  # the server does not know yet
    state = wait_until_final(run.id).state
    assert state is not None and state.is_crashed()
    assert str(state.message).startswith("no heartbeat for 24 s: its process or its machine died; Retry, ")
    install_crash_automation(HEARTBEAT_SECONDS)


@full_only
def test_a_published_version_starts_training(up: Up) -> None:
    folder = up.folder
    asked = parameters(folder, "novels")
    texts = [f"chapter {i} " * 600 for i in range(60)]  # a chunk of the example is 5,121 bytes of one document
    write_parquet(folder / "input" / "long.parquet", texts)
    asked["spec"]["sources"][0]["path"] = str(folder / "input" / "long.parquet")
    shares = {"train": 0.5, "validation": 0.25, "test": 0.25}
    asked["spec"]["splits"] = [{"name": name, "share": share} for name, share in shares.items()]
    install("novels", updates=10)
    install("novels", updates=10)  # a second time changes nothing
    run_deployment("build-dataset/build-dataset", parameters=asked, timeout=300, poll_interval=1)

    def trained() -> list[FlowRun]:
        with get_client(sync_client=True) as client:
            name = DeploymentFilter(name=DeploymentFilterName(any_=["train"]))
            runs = client.read_flow_runs(deployment_filter=name)
        return runs if runs and all(run.state is not None and run.state.is_final() for run in runs) else []

    (run,) = wait_until(trained)
    assert run.state is not None and run.state.is_completed(), run.state
    assert run.parameters["reference"] == event("tokenloom.dataset.published", "novels")["reference"]
    assert run.parameters["updates"] == 10


@pytest.mark.parametrize("by", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=full_only)])
def test_up_ends_with_all_that_it_started_and_the_next_one_continues(
    up: Up, by: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"stopped-{by.name.lower()}"
    asked = waiting_parameters(up.folder, name)
    run = started(asked)
    assert len(processes_with(up.mark)) >= 5  # itself, the server, the worker, the run, its own worker
    up.stop(by)
    assert published(asked) == []
    (record,) = local_store(asked["spec"]["store"], name).local("work/spills").glob("*.json")
    written = record.stat().st_mtime_ns
    up.start()
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(run.id, Scheduled(name="AwaitingRetry"), force=True)  # what the button Retry does
    let_go(up.folder, name)
    ended = wait_until_final(run.id)
    assert ended.state is not None and ended.state.is_completed(), ended.state
    assert "; 1 of 2 partitions reused; " in str(ended.state.message)
    assert record.stat().st_mtime_ns == written
    assert_equal_to_an_undisturbed_build(asked, up.folder, monkeypatch)


@pytest.mark.parametrize(
    ("words", "log"),
    [pytest.param("app:prefect_app", "server.log", marks=full_only), ("worker start", "worker.log")],
)
def test_up_ends_and_names_the_log_if_a_process_of_it_dies(words: str, log: str, up: Up) -> None:
    # The process of the last run may still be ending. It has its own session, and would outlive a killed worker.
    wait_until(lambda: len(processes_with(up.mark)) == 3)
    (pid,) = [pid for pid in processes_with(up.mark) if words in command_line(pid)]
    os.kill(pid, signal.SIGKILL)
    output, _ = up.process.communicate(timeout=60)
    assert up.process.returncode == 1
    assert f"{log} says why; then run `tokenloom up` again" in output
    up.stop()
    if FULL:
        up.start()
