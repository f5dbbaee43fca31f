"""Create the work pool and the deployments of prefect.yaml on a Prefect server; keep the changes of users there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolCreate
from prefect.exceptions import ObjectNotFound
from prefect.flows import Flow, load_flow_from_entrypoint
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.utilities.callables import parameter_schema
from prefect.workers.process import ProcessWorker

from tokenloom.automations import install_crash_automation
from tokenloom.errors import TokenloomError
from tokenloom.server.known_server import POOL, page_of

NAMES = {  # FLOW/NAME by its label in the output of `tokenloom up`
    "build": "build-a-spec-file/build-a-spec-file",
    "without a file": "build-dataset/build-dataset",
    "verify": "verify-dataset/verify-dataset",
    "collect": "collect-garbage/collect-garbage",
    "export": "export-dataset/export-dataset",
}
_OF_THE_WORKER = ("command", "env", "working_dir")
_FILE = Path(__file__).parents[1] / "prefect.yaml"


def deploy_all(url: str, heartbeat_seconds: int) -> None:
    """Create the work pool and the deployments that are missing, update the others, and install the automation.

    Deployments that exist keep their parameters, schedules and limits.

    Args:
        url: the URL of the server's API.
        heartbeat_seconds: interval between the heartbeats of a run.

    Raises:
        TokenloomError: the server refused a request.
    """
    with temporary_settings({PREFECT_API_URL: url}), get_client(sync_client=True) as client:
        _ensure_pool(client)
        missing = [
            entry["name"] for entry in yaml.safe_load(_FILE.read_text())["deployments"] if not _update(client, entry)
        ]
        if missing:
            _deploy(url, missing)
        install_crash_automation(heartbeat_seconds)


def deployment_pages(url: str) -> dict[str, str]:
    """Return the URL of each deployment's page in the UI, by label.

    Args:
        url: the URL of the server's API.
    """
    with temporary_settings({PREFECT_API_URL: url}), get_client(sync_client=True) as client:
        ids = {label: client.read_deployment_by_name(name).id for label, name in NAMES.items()}
    return {label: page_of(url, f"deployments/deployment/{each}") for label, each in ids.items()}


def _ensure_pool(client: SyncPrefectClient) -> None:
    try:
        client.read_work_pool(POOL)
    except ObjectNotFound:
        template = ProcessWorker.get_default_base_job_template()
        for name in _OF_THE_WORKER:  # a form's job variables could set them
            del template["job_configuration"][name], template["variables"]["properties"][name]
        client.create_work_pool(WorkPoolCreate(name=POOL, type="process", base_job_template=template))


def _update(client: SyncPrefectClient, entry: dict[str, Any]) -> bool:
    """Give a deployment that exists the flow and the form of this release; return False if there is none."""
    flow: Flow[..., Any] = load_flow_from_entrypoint(entry["entrypoint"])
    try:
        found = client.read_deployment_by_name(f"{flow.name}/{entry['name']}")
    except ObjectNotFound:
        return False
    schema = parameter_schema(flow).model_dump_for_openapi()
    update = DeploymentUpdate(
        entrypoint=entry["entrypoint"], description=entry["description"], parameter_openapi_schema=schema
    )
    client.update_deployment(found.id, update)
    return True


def _deploy(url: str, names: list[str]) -> None:
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--prefect-file", str(_FILE)]
    command += [f"--name={name}" for name in names]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"PREFECT_API_URL": url}
    )
    if done.returncode:
        raise TokenloomError(f"{url} refused the deployments:\n{done.stdout}{done.stderr}")
