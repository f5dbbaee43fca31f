"""The work pool and the deployments of prefect.yaml on a Prefect server; what a user set there stays as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolCreate
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.workers.process import ProcessWorker

from tokenloom.automations import install_crash_automation, install_crash_report
from tokenloom.errors import TokenloomError
from tokenloom.server.prefect_server import POOL, page_of

NAMES = ("build-dataset/build-dataset", "rebuild-dataset/rebuild-nightly", "verify-dataset/verify-dataset")
_OLD = "build-dataset/rebuild-nightly"  # of releases whose schedules took a whole spec
_OLD_SCHEDULE = CronSchedule(cron="0 2 * * *", timezone="UTC")  # it was inactive
_FILE = Path(__file__).parents[1] / "prefect.yaml"
_OF_A_SCHEDULE = {"schedule", "active", "parameters", "slug", "max_scheduled_runs"}


def deploy_all(url: str, heartbeat_seconds: int) -> list[str]:
    """Make the work pool if it is missing, the deployments as prefect.yaml says, and the automation for dead runs.

    Parameters, schedules and limits of deployments that are there already stay. Of earlier releases' deployments, those
    that nobody changed are removed.

    Args:
        url: of the server's API.
        heartbeat_seconds: how often runs say that they live.

    Returns:
        The names of earlier releases' deployments that are kept, since somebody changed them.

    Raises:
        TokenloomError: the server refuses.
    """
    with temporary_settings({PREFECT_API_URL: url}), get_client(sync_client=True) as client:
        _make_pool(client)
        known = _known(client)
        _deploy(url)
        for before in known:
            try:
                _restore(client, before)
            except PrefectHTTPStatusError as error:
                raise TokenloomError(
                    f"deployment {before.name}: what was set there is refused: {error}; set it again under Edit"
                ) from error
        install_crash_automation(heartbeat_seconds)
        install_crash_report(url)
        return _remove_old(client)


def deployment_pages(url: str) -> dict[str, str]:
    """Return the address in the UI of each deployment by its name.

    Args:
        url: of the server's API.
    """
    with temporary_settings({PREFECT_API_URL: url}), get_client(sync_client=True) as client:
        return {each.name: page_of(url, f"deployments/deployment/{each.id}") for each in _known(client)}


def _make_pool(client: SyncPrefectClient) -> None:
    try:
        client.read_work_pool(POOL)
    except ObjectNotFound:
        template = ProcessWorker.get_default_base_job_template()
        client.create_work_pool(WorkPoolCreate(name=POOL, type="process", base_job_template=template))


def _known(client: SyncPrefectClient) -> list[DeploymentResponse]:
    known = []
    for name in NAMES:
        try:
            known.append(client.read_deployment_by_name(name))
        except ObjectNotFound:
            continue
    return known


def _remove_old(client: SyncPrefectClient) -> list[str]:
    """Remove the deployment of an earlier release unless somebody changed it; return its name then."""
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
        raise TokenloomError(f"{url} did not take the deployments:\n{done.stdout}{done.stderr}")


def _restore(client: SyncPrefectClient, before: DeploymentResponse) -> None:
    """Give a deployment back what prefect.yaml has overwritten."""
    limit = before.global_concurrency_limit
    kept = DeploymentUpdate(
        parameters=before.parameters,
        paused=before.paused,
        concurrency_limit=limit.limit if limit else None,
        concurrency_options=before.concurrency_options,
    )
    client.update_deployment(before.id, kept)
    for schedule in client.read_deployment_schedules(before.id):
        client.delete_deployment_schedule(before.id, schedule.id)
    schedules = [each.model_dump(mode="json", include=_OF_A_SCHEDULE) for each in before.schedules]
    client._client.post(f"/deployments/{before.id}/schedules", json=schedules)
