"""Automations on a Prefect server: runs whose machine died end as Crashed; a deployment starts on publication."""

from __future__ import annotations

from datetime import timedelta

from prefect.automations import ChangeFlowRunState, EventTrigger, Posture, RunDeployment
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectNotFound

from tokenloom.errors import TokenloomError

TAG = "tokenloom"  # of all runs that these automations look after
_CRASHED = "tokenloom: a run whose machine died is Crashed"
_FINAL = ("Completed", "Failed", "Cancelled", "Crashed")


def install_crash_automation(heartbeat_seconds: int) -> None:
    """Let the server mark a tagged run as Crashed when three of its heartbeats are missing; replaces an older one.

    Args:
        heartbeat_seconds: PREFECT_FLOWS_HEARTBEAT_FREQUENCY of the workers; a shorter time would end runs that live.
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
    message = f"no heartbeat for {3 * heartbeat_seconds} s: its process died; run it again, it goes on from its spills"
    _install(
        AutomationCore(
            name=_CRASHED,
            description="Installed by tokenloom deploy",
            trigger=trigger,
            actions=[ChangeFlowRunState(state=StateType.CRASHED, message=message)],
        )
    )


def install_publication_automation(dataset: str, deployment: str, tag: str = "latest") -> str:
    """Let the server run a deployment when a build publishes a version; return the automation's name.

    Its parameter `reference` is the version: STORE/DATASET@VERSION.

    Args:
        dataset: whose versions; "*" for all.
        deployment: FLOW/NAME.
        tag: that names the version since then; "tryout" for those of --limit, "none" where the tag was left alone,
            "*" for all.

    Raises:
        TokenloomError: there is no such deployment.
    """
    name = f"tokenloom: {deployment} on publication of {dataset}@{tag}"
    with get_client(sync_client=True) as client:
        try:
            target = client.read_deployment_by_name(deployment)
        except ObjectNotFound as error:
            raise TokenloomError(f"{deployment}: no such deployment; `prefect deployment ls` shows them") from error
    trigger = EventTrigger(
        expect={"tokenloom.dataset.published"},
        match={"prefect.resource.id": f"tokenloom.dataset.{dataset}", "tokenloom.tag": tag},
        posture=Posture.Reactive,
        threshold=1,
        within=timedelta(0),
    )
    start = RunDeployment(
        source="selected", deployment_id=target.id, parameters={"reference": "{{ event.payload.reference }}"}
    )
    _install(AutomationCore(name=name, description="Installed by tokenloom", trigger=trigger, actions=[start]))
    return name


def _install(automation: AutomationCore) -> None:
    """Create an automation, or change the one of that name; whether it is switched on stays as it is."""
    with get_client(sync_client=True) as client:
        known = client.read_automations_by_name(automation.name)
        if not known:
            client.create_automation(automation)
        for one in known:
            if (one.trigger, one.actions) != (automation.trigger, automation.actions):  # else runs at work lose theirs
                client.update_automation(one.id, automation.model_copy(update={"enabled": one.enabled}))
