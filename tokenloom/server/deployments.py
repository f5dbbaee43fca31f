"""Create the work pool and the deployments of prefect.yaml on a Prefect server; keep the changes of users there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, DeploymentUpdate, WorkPoolCreate
from prefect.client.schemas.objects import ConcurrencyOptions
from prefect.client.schemas.schedules import CronSchedule
from prefect.exceptions import ObjectNotFound
from prefect.flows import Flow, load_flow_from_entrypoint
from prefect.settings import PREFECT_API_URL, PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.utilities.callables import parameter_schema
from prefect.workers.process import ProcessWorker

from tokenloom.automations import install_crash_automation
from tokenloom.server.known_server import HEARTBEAT_SECONDS, POOL, url_of_up

NAMES = {  # FLOW/NAME by its label in the output of `tokenloom up`
    "build": "build-a-spec-file/build-a-spec-file",
    "without a file": "build-dataset/build-dataset",
    "verify": "verify-dataset/verify-dataset",
    "collect": "collect-garbage/collect-garbage",
    "export": "export-dataset/export-dataset",
}
_OF_THE_WORKER = ("command", "env", "working_dir")
_FILE = Path(__file__).parents[1] / "prefect.yaml"


def deploy_all(url: str) -> int:
    """Create the work pool and the deployments that are missing, update the others, and install the automation.

    Deployments that exist keep their parameters, schedules and limits.

    Args:
        url: the URL of the server's API.

    Returns the seconds between two heartbeats of a run, as far as this process knows.
    """
    heartbeat = max(HEARTBEAT_SECONDS, 0 if url == url_of_up() else PREFECT_FLOWS_HEARTBEAT_FREQUENCY.value() or 0)
    with temporary_settings({PREFECT_API_URL: url}), get_client(sync_client=True) as client:
        _ensure_pool(client)
        for entry in yaml.safe_load(_FILE.read_text())["deployments"]:
            _deploy(client, entry)
        install_crash_automation(heartbeat)
    return heartbeat


def deployment_pages(url: str) -> dict[str, str]:
    """Return the URL of each deployment's page in the UI, by label.

    Args:
        url: the URL of the server's API.
    """
    with temporary_settings({PREFECT_API_URL: url}), get_client(sync_client=True) as client:
        ids = {label: client.read_deployment_by_name(name).id for label, name in NAMES.items()}
    return {label: f"{url.removesuffix('/api')}/v2/deployments/deployment/{each}" for label, each in ids.items()}


def _ensure_pool(client: SyncPrefectClient) -> None:
    try:
        client.read_work_pool(POOL)
    except ObjectNotFound:
        template = ProcessWorker.get_default_base_job_template()
        for name in _OF_THE_WORKER:  # a form's job variables could set them
            del template["job_configuration"][name], template["variables"]["properties"][name]
        client.create_work_pool(WorkPoolCreate(name=POOL, type="process", base_job_template=template))


def _deploy(client: SyncPrefectClient, entry: dict[str, Any]) -> None:
    """Create a deployment of prefect.yaml; give one that exists the flow and the form of this release."""
    flow: Flow[..., Any] = load_flow_from_entrypoint(entry["entrypoint"])
    of_release = {
        "entrypoint": entry["entrypoint"],
        "description": entry["description"],
        "parameter_openapi_schema": parameter_schema(flow).model_dump_for_openapi(),
    }
    try:
        found = client.read_deployment_by_name(f"{flow.name}/{entry['name']}")
    except ObjectNotFound:
        limit = dict(entry["concurrency_limit"])
        client.create_deployment(
            flow_id=client.create_flow(flow),
            name=entry["name"],
            tags=entry["tags"],
            work_pool_name=POOL,
            concurrency_limit=limit.pop("limit"),
            concurrency_options=ConcurrencyOptions(**limit),
            schedules=[_schedule(**schedule) for schedule in entry.get("schedules", ())],
            **of_release,
        )
    else:
        client.update_deployment(found.id, DeploymentUpdate(**of_release))


def _schedule(slug: str, active: bool, **cron: str) -> DeploymentScheduleCreate:
    return DeploymentScheduleCreate(slug=slug, active=active, schedule=CronSchedule(**cron))
