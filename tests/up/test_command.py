"""`tokenloom up` from the outside: a real server and worker, its deployments, other commands beside it, its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentUpdate

from tests.builders.datasets import write_parquet
from tests.servers.prefect_servers import use_migrated
from tests.servers.running import (
    Up,
    command,
    newest_run,
    wait_until_gone,
)
from tokenloom.server.deployments import NAMES, deployment_pages

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_the_deployments_exist_and_the_nightly_schedules_are_inactive(up: Up) -> None:
    with get_client(sync_client=True) as client:
        build = client.read_deployment_by_name("build-dataset/build-dataset")
        nightly = client.read_deployment_by_name("build-a-spec-file/build-a-spec-file")
        collect = client.read_deployment_by_name("collect-garbage/collect-garbage")
        pages = {label: client.read_deployment_by_name(name).id for label, name in NAMES.items()}
    root = f"{up.url.removesuffix('/api')}/v2/deployments/deployment"
    assert deployment_pages(up.url) == {name: f"{root}/{page}" for name, page in pages.items()}
    assert (build.entrypoint, build.pull_steps) == ("tokenloom.flows.build_dataset.build_dataset", [])
    assert build.global_concurrency_limit is not None and build.global_concurrency_limit.limit == 1  # until it is set
    for deployment, cron in ((nightly, "0 2 * * *"), (collect, "0 4 * * *")):
        (schedule,) = deployment.schedules
        assert (schedule.active, schedule.schedule.cron, schedule.schedule.timezone) == (False, cron, "UTC")  # type: ignore[union-attr]


def test_a_build_on_the_command_line_finds_the_server(up: Up) -> None:
    folder, url = up.folder, up.url
    write_parquet(folder / "found" / "b.parquet", ["found"] * 3)
    source = "sources:\n  - kind: parquet\n    path: found/b.parquet\n"
    spec = f"dataset: found\nstore: store\n{source}tokenizer: {{kind: byte}}\n"
    (folder / "spec.yaml").write_text(spec)
    done = command(folder, "build", "spec.yaml", "--workers", "0")
    assert done.returncode == 0, done.stderr
    assert f"Prefect server {url}" in done.stderr
    assert newest_run().name == "build-found"


def test_deploy_keeps_what_a_user_set_and_a_second_up_is_refused(up: Up) -> None:
    folder, url = up.folder, up.url
    asked = {"spec_file": "specs/news.yaml", "overrides": "limit=5"}
    with get_client(sync_client=True) as client:
        nightly = client.read_deployment_by_name("build-a-spec-file/build-a-spec-file")
        build = client.read_deployment_by_name("build-dataset/build-dataset")
        client.update_deployment(nightly.id, DeploymentUpdate(parameters=asked))
        client.update_deployment(build.id, DeploymentUpdate(concurrency_limit=3))
        client.update_deployment_schedule(nightly.id, nightly.schedules[0].id, active=True)
        before = client._client.post("/automations/filter", json={}).json()
    done = command(folder, "deploy")
    assert done.returncode == 0, done.stderr
    assert url in done.stdout and "for 90 s counts as dead" in done.stdout and done.stderr == ""
    with get_client(sync_client=True) as client:
        again = client.read_deployment_by_name("build-a-spec-file/build-a-spec-file")
        limit = client.read_deployment_by_name("build-dataset/build-dataset").global_concurrency_limit
        after = client._client.post("/automations/filter", json={}).json()
        client.update_deployment_schedule(nightly.id, again.schedules[0].id, active=False)
        client.update_deployment(nightly.id, DeploymentUpdate(parameters=nightly.parameters))
    assert again.parameters == asked
    assert [(each.slug, each.active) for each in again.schedules] == [("nightly", True)]
    assert again.schedules[0].schedule == nightly.schedules[0].schedule
    assert limit is not None and limit.limit == 3
    assert [automation["name"] for automation in after] == ["tokenloom: a run whose machine died is Crashed"]
    triggers = [{each["name"]: each["trigger"] for each in found} for found in (before, after)]
    assert triggers[0] == triggers[1]  # including their ids, under which current runs wait
    second = command(folder, "up", "--port", "0")
    assert second.returncode == 1
    assert "another `tokenloom up` uses this folder" in second.stderr


def test_ctrl_c_while_the_server_starts_is_an_interruption(migrated: Path, tmp_path: Path) -> None:
    mark = f"mark-{uuid.uuid4()}"
    use_migrated(migrated, tmp_path / "up")
    starting = subprocess.Popen(
        [sys.executable, "-m", "tokenloom", "up", "--port", "0", "--json"],
        cwd=tmp_path,
        env=os.environ | {"TOKENLOOM_TEST_MARK": mark, "TOKENLOOM_UP_HOME": str(tmp_path / "up")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert starting.stderr is not None
    assert "starting the Prefect server" in starting.stderr.readline()
    starting.send_signal(signal.SIGINT)
    output, errors = starting.communicate(timeout=60)
    assert starting.returncode == 130, errors
    assert json.loads(output)["error"]["type"] == "KeyboardInterrupt"
    assert errors.splitlines() == ["stopping the worker, then the server", "interrupted"]
    assert wait_until_gone(mark) == []


def test_a_taken_port_is_named(tmp_path: Path, up: Up) -> None:
    port = up.url.split(":")[2].split("/")[0]
    done = command(tmp_path, "up", "--port", port)
    assert done.returncode == 1
    assert f"port {port} of 127.0.0.1 can't be used" in done.stderr
