"""The heartbeats of a run: those of a flow, and Prefect's own where they are on."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from prefect import tags
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from tests.builders.datasets import make_spec, write_jsonl
from tests.servers.prefect_servers import send_all
from tests.servers.running import wait_until
from tokenloom.automations import TAG
from tokenloom.flows.build_dataset import build_dataset
from tokenloom.flows.runs import heartbeat

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.usefixtures("prefect_server")]


def _build(folder: Path) -> FlowRun:
    """Run a build and return its run."""
    write_jsonl(folder / "a.jsonl", ["one", "two"])
    spec = make_spec(folder / "store", [{"kind": "jsonl", "path": str(folder / "a.jsonl")}])
    with tags(TAG):
        build_dataset(spec.with_workers(0))
    with get_client(sync_client=True) as client:
        return max(client.read_flow_runs(), key=lambda run: str(run.created))


def _events(run: FlowRun) -> list[dict[str, Any]]:
    """Return the events of a run, once the server has the last one."""
    send_all()
    wanted = {"filter": {"resource": {"id": [f"prefect.flow-run.{run.id}"]}}}

    def found() -> list[dict[str, Any]]:
        with get_client(sync_client=True) as client:
            events = client.request("POST", "/events/filter", json=wanted).json()["events"]
        return events if any(event["event"] == "prefect.flow-run.Completed" for event in events) else []

    events: list[dict[str, Any]] = wait_until(found)
    return events


def _named(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == f"prefect.flow-run.{name}"]


def test_a_flow_sends_heartbeats_until_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "HEARTBEAT_SECONDS", 0.02)
    events = _events(_build(tmp_path))
    (ended,) = (datetime.fromisoformat(event["occurred"]) for event in _named(events, "Completed"))
    beats = _named(events, "heartbeat")
    assert len(beats) > 1
    assert all(datetime.fromisoformat(beat["occurred"]) <= ended for beat in beats)
    # What the automation looks for.
    assert all(f"prefect.tag.{TAG}" in [each["prefect.resource.id"] for each in beat["related"]] for beat in beats)


def test_a_flow_sends_none_where_prefect_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "HEARTBEAT_SECONDS", 0.02)
    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: 30}):
        run = _build(tmp_path)
    assert len(_named(_events(run), "heartbeat")) == 1  # Prefect's first
