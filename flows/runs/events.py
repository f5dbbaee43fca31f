"""The events of a run, and the last line of its log if it failed.

A failure's event and last line are sent synchronously: a process that got SIGTERM, or a server that stops, does not
wait for queues to empty.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.events import Event, emit_event
from prefect.runtime import flow_run

from tokenloom.storage.formats.names import NAME_PATTERN
from tokenloom.tasks.publishing.outcome import outcome_line, reading_lines

DATASET_LABEL = "tokenloom.dataset"  # a label of flow runs
BUILDS = ("build-dataset", "build-a-spec-file")  # the flows that build datasets
FLOWS = (*BUILDS, "verify-dataset", "collect-garbage", "export-dataset")
_UNKNOWN = "unknown"  # the run ended before it knew its dataset
# Fields of a build's result that the event `tokenloom.dataset.published` contains.
_PUBLISHED = (
    "version",
    "reference",
    "tag",
    "tag_moved",
    "tokens",
    "documents",
    "shards",
    "seconds",
    "partitions",
    "partitions_reused",
    "tokenizer",
    "report",
)

Ending = Literal["failed", "cancelled", "crashed"]


def write_last_line(client: SyncPrefectClient, run: FlowRun, ending: Ending, message: str) -> None:
    """Write how a run ended, and why, to its log."""
    line = {"level": logging.ERROR, "message": f"{ending}: {message}", "timestamp": datetime.now(UTC).isoformat()}
    client.create_logs([{"name": "prefect.flow_runs", "flow_run_id": str(run.id)} | line])


def emit_published(dataset: str, result: Mapping[str, Any]) -> None:
    """Emit the event `tokenloom.dataset.published` of this flow run.

    Args:
        dataset: its name.
        result: see BuildResult.to_json.
    """
    emit_event(**_published(dataset, result, flow_run.get_id()))


def _published(dataset: str, result: Mapping[str, Any], run_id: str | None) -> dict[str, Any]:
    tag = result["tag"] if result["tag_moved"] else "none"
    return {
        "event": "tokenloom.dataset.published",
        "resource": _resource(dataset) | {"tokenloom.version": result["version"], "tokenloom.tag": tag},
        "payload": {
            "dataset": dataset,
            **{name: result[name] for name in _PUBLISHED},
            "flow_run_id": run_id,
            "message": outcome_line(result),
            "read": reading_lines(result["reference"]),
        },
    }


def emit_failed(client: SyncPrefectClient, run: FlowRun, ending: Ending, error: str | None, message: str) -> None:
    """Emit the event `tokenloom.dataset.failed`.

    Args:
        client: connected to the run's server.
        run: the run that did not build its dataset.
        ending: how it ended.
        error: name of the exception; None if there was none.
        message: the reason, in one line.
    """
    dataset = dataset_of(run)
    event = Event(
        event="tokenloom.dataset.failed",
        resource=_resource(dataset),
        payload={
            "dataset": dataset,
            "state": ending,
            "error": error,
            "message": message,
            "flow_run_id": str(run.id),
        },
    )
    _send(client, event)


def _send(client: SyncPrefectClient, event: Event) -> None:
    client.request("POST", "/events", json=[event.model_dump(mode="json")])


def _resource(dataset: str) -> dict[str, str]:
    return {"prefect.resource.id": f"tokenloom.dataset.{dataset}", "prefect.resource.name": dataset}


def dataset_of(run: FlowRun) -> str:
    """Return the dataset that a run builds, from its label or else its parameters; "unknown" if neither names it."""
    spec: Any = run.parameters.get("spec")
    given = spec.get("dataset") if isinstance(spec, dict) else None
    named = str(run.labels.get(DATASET_LABEL) or given or "")
    return named if NAME_PATTERN.match(named) else _UNKNOWN
