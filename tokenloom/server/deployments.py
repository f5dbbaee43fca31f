"""Create the work pool and the deployments of prefect.yaml on a Prefect server; keep what users changed there."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, DeploymentUpdate, WorkPoolCreate
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.workers.process import ProcessWorker

from tokenloom.automations import install_crash_automation, install_crash_report
from tokenloom.errors import TokenloomError, message_of
from tokenloom.server.prefect_server import POOL, page_of

NAMES = (
    "build-dataset/build-dataset",
    "rebuild-dataset/rebuild-nightly",
    "verify-dataset/verify-dataset",
    "collect-garbage/collect-garbage",
)
_OLD = "build-dataset/rebuild-nightly"  # created by releases whose schedules contained a whole spec
_OLD_SCHEDULE = CronSchedule(cron="0 2 * * *", timezone="UTC")  # those releases made it inactive
_FILE = Path(__file__).parents[1] / "prefect.yaml"


def deploy_all(url: str, heartbeat_seconds: int) -> list[str]:
    """Create the work pool if it is missing, the deployments of prefect.yaml, and the automations for dead runs.

    Existing deployments keep their parameters, schedules and limits. Deployments of earlier releases are removed unless
    a user changed them.

    Args:
        url: the URL of the server's API.
        heartbeat_seconds: interval between the heartbeats of a run.

    Returns:
        The names of deployments of earlier releases that were kept because a user changed them.

    Raises:
        TokenloomError: the server refused a request.
    """
    with temporary_settings({PREFECT_API_URL: url}), get_client(sync_client=True) as client:
        _ensure_pool(client)
        existing = _existing(client)
        _deploy(url)
        for deployment in existing:
            _restore(client, deployment)
        install_crash_automation(heartbeat_seconds)
        install_crash_report(url)
        return _remove_old(client)


def deployment_pages(url: str) -> dict[str, str]:
    """Return the URL of each deployment's page in the UI, by name.

    Args:
        url: the URL of the server's API.
    """
    with temporary_settings({PREFECT_API_URL: url}), get_client(sync_client=True) as client:
        return {each.name: page_of(url, f"deployments/deployment/{each.id}") for each in _existing(client)}


def _ensure_pool(client: SyncPrefectClient) -> None:
    try:
        client.read_work_pool(POOL)
    except ObjectNotFound:
        template = ProcessWorker.get_default_base_job_template()
        client.create_work_pool(WorkPoolCreate(name=POOL, type="process", base_job_template=template))


def _existing(client: SyncPrefectClient) -> list[DeploymentResponse]:
    found = []
    for name in NAMES:
        with suppress(ObjectNotFound):
            found.append(client.read_deployment_by_name(name))
    return found


def _remove_old(client: SyncPrefectClient) -> list[str]:
    """Remove the deployment of an earlier release; if a user changed it, return its name instead."""
    try:
        old = client.read_deployment_by_name(_OLD)
    except ObjectNotFound:
        return []
    schedules = [(each.schedule, each.active, each.parameters) for each in old.schedules]
    if old.parameters or schedules != [(_OLD_SCHEDULE, False, {})]:
        return [_OLD]
    client.delete_deployment(old.id)
    return []


def _deploy(url: str) -> None:
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(_FILE)]
    environment = os.environ | {"PREFECT_API_URL": url}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise TokenloomError(f"{url} refused the deployments:\n{done.stdout}{done.stderr}")


def _restore(client: SyncPrefectClient, before: DeploymentResponse) -> None:
    """Restore the settings of a deployment that prefect.yaml has overwritten."""
    limit = before.global_concurrency_limit
    update = DeploymentUpdate(
        parameters=before.parameters,
        paused=before.paused,
        concurrency_limit=limit.limit if limit else None,
        concurrency_options=before.concurrency_options,
    )
    schedules = [
        DeploymentScheduleCreate(
            schedule=each.schedule,
            active=each.active,
            parameters=each.parameters,
            slug=each.slug,
            max_scheduled_runs=each.max_scheduled_runs,
        )
        for each in before.schedules
    ]
    try:
        client.update_deployment(before.id, update)
        for schedule in client.read_deployment_schedules(before.id):
            client.delete_deployment_schedule(before.id, schedule.id)
        client.create_deployment_schedules(before.id, schedules)
    except PrefectHTTPStatusError as error:
        raise TokenloomError(
            f"deployment {before.name}: the server refused the settings it had before: {message_of(error)}; "
            "set them again under Edit"
        ) from error
