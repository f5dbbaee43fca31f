"""Automations on a Prefect server: runs whose machine died end as Crashed; a deployment starts on publication.

Prefect's own server has no action that emits an event or writes a line of a log, so the server calls its own API for
both: an automation that calls a webhook.
"""

from __future__ import annotations

from base64 import b64encode
from datetime import timedelta
from typing import Any
from uuid import UUID

from prefect.automations import CallWebhook, ChangeFlowRunState, EventTrigger, Posture, RunDeployment
from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_AUTH_STRING

from tokenloom.errors import TokenloomError
from tokenloom.flows.run_events import BUILDS
from tokenloom.tasks.messages.outcome import crash_message

TAG = "tokenloom"  # of all runs that these automations look after
_NO_HEARTBEAT = "no heartbeat for"
_REPORTED = "tokenloom: a run whose machine died is reported"
_FAILED_EVENT = """
{%- set dataset = flow_run.labels["tokenloom.dataset"] | default("unknown") -%}
[{
  "id": "{{ firing.id }}",
  "occurred": "{{ event.occurred.isoformat() }}",
  "event": "tokenloom.dataset.failed",
  "resource": {"prefect.resource.id": "tokenloom.dataset.{{ dataset }}", "prefect.resource.name": "{{ dataset }}"},
  "payload": {
    "dataset": "{{ dataset }}",
    "state": "crashed",
    "error": null,
    "message": {{ flow_run.state.message | tojson }},
    "flow_run_id": "{{ flow_run.id }}"
  }
}]"""
_LAST_LINE = """
[{
  "name": "prefect.flow_runs",
  "level": 40,
  "message": {{ ("crashed: " ~ flow_run.state.message) | tojson }},
  "timestamp": "{{ event.occurred.isoformat() }}",
  "flow_run_id": "{{ flow_run.id }}"
}]"""
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
    message = crash_message(f"{_NO_HEARTBEAT} {3 * heartbeat_seconds} s: its process or its machine died")
    _install(
        AutomationCore(
            name=_CRASHED,
            description="Installed by tokenloom deploy",
            trigger=trigger,
            actions=[ChangeFlowRunState(state=StateType.CRASHED, message=message)],
        )
    )


def install_crash_report(url: str) -> None:
    """Let the server say for a build whose machine died what its process can't: in an event, and in the run's log.

    Args:
        url: of the server's API, where the server itself can reach it.
    """
    trigger = EventTrigger(
        expect={"prefect.flow-run.Crashed"},
        match={"prefect.resource.id": "prefect.flow-run.*", "prefect.state-message": f"{_NO_HEARTBEAT} *"},
        match_related={"prefect.resource.role": "flow", "prefect.resource.name": list(BUILDS)},
        for_each={"prefect.resource.id"},
        posture=Posture.Reactive,
        threshold=1,
        within=timedelta(0),
    )
    actions = [
        CallWebhook(block_document_id=_webhook("tokenloom-events", f"{url}/events"), payload=_FAILED_EVENT),
        CallWebhook(block_document_id=_webhook("tokenloom-logs", f"{url}/logs/"), payload=_LAST_LINE),
    ]
    _install(
        AutomationCore(name=_REPORTED, description="Installed by tokenloom deploy", trigger=trigger, actions=actions)
    )


def _webhook(name: str, url: str) -> UUID:
    """Save a webhook that posts JSON with this client's own credentials; return its id."""
    headers = {"Content-Type": "application/json"}
    if password := PREFECT_API_AUTH_STRING.value():
        headers["Authorization"] = f"Basic {b64encode(str(password).encode()).decode()}"
    block: Any = Webhook(url=url, headers=headers)
    return UUID(str(block.save(name, overwrite=True, _sync=True)))


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
