"""Automations on a Prefect server: a run whose machine died becomes Crashed; a publication starts a deployment."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from prefect.automations import ChangeFlowRunState, EventTrigger, Posture, RunDeployment
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectNotFound

from tokenloom.errors import TokenloomError

TAG = "tokenloom"  # all runs that these automations watch have it
_CRASHED = "tokenloom: a run whose machine died is Crashed"
_FINAL = ("Completed", "Failed", "Cancelled", "Crashed")


def install_crash_automation(heartbeat_seconds: int) -> None:
    """Install the automation that marks a tagged run as Crashed after three missing heartbeats, or update it.

    Args:
        heartbeat_seconds: PREFECT_FLOWS_HEARTBEAT_FREQUENCY of the workers. A smaller value would end live runs.
    """
    trigger = EventTrigger(
        after={"prefect.flow-run.heartbeat"},
        expect={"prefect.flow-run.heartbeat", *(f"prefect.flow-run.{state}" for state in _FINAL)},
        match={"prefect.resource.id": "prefect.flow-run.*"},
        match_related={"prefect.resource.id": f"prefect.tag.{TAG}"},
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        threshold=1,
        within=timedelta(seconds=3 * heartbeat_seconds),
    )
    message = (
        f"no heartbeat for {3 * heartbeat_seconds} s: its process or its machine died; Retry, or the next run of the "
        "same spec, continues from what is done"
    )
    _install(_CRASHED, trigger, ChangeFlowRunState(state=StateType.CRASHED, message=message))


def install_publication_automation(dataset: str, deployment: str, tag: str = "latest") -> str:
    """Install the automation that runs a deployment when a build publishes a version; return its name.

    The deployment's parameter `reference` is the version: STORE/DATASET@VERSION.

    Args:
        dataset: the dataset of the versions; "*" for all.
        deployment: FLOW/NAME.
        tag: the tag that names the new version: "tryout" for builds with --limit, "none" if no tag was moved, "*" for
            all.

    Raises:
        TokenloomError: there is no such deployment.
    """
    name = f"tokenloom: {deployment} on publication of {dataset}@{tag}"
    deployment_id = _deployment_id(deployment)
    trigger = EventTrigger(
        expect={"tokenloom.dataset.published"},
        match={"prefect.resource.id": f"tokenloom.dataset.{dataset}", "tokenloom.tag": tag},
        posture=Posture.Reactive,
        threshold=1,
        within=timedelta(0),
    )
    start = RunDeployment(
        source="selected", deployment_id=deployment_id, parameters={"reference": "{{ event.payload.reference }}"}
    )
    _install(name, trigger, start)
    return name


def _deployment_id(deployment: str) -> UUID:
    with get_client(sync_client=True) as client:
        try:
            return client.read_deployment_by_name(deployment).id
        except ObjectNotFound as error:
            raise TokenloomError(f"{deployment}: no such deployment; `prefect deployment ls` lists them") from error


def _install(name: str, trigger: EventTrigger, action: Any) -> None:
    """Create an automation, or update the one of that name, which stays enabled or disabled.

    An update drops the triggers that current runs wait under, so an unchanged automation is not updated.
    """
    automation = AutomationCore(name=name, description="Installed by tokenloom", trigger=trigger, actions=[action])
    with get_client(sync_client=True) as client:
        found = client.read_automations_by_name(automation.name)
        if not found:
            client.create_automation(automation)
        for each in found:
            if (each.trigger, each.actions) != (automation.trigger, automation.actions):
                client.update_automation(each.id, automation.model_copy(update={"enabled": each.enabled}))
