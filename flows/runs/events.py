"""Write the last line of a run's log, and emit the event of its failure.

Both are sent synchronously: a process that got SIGTERM, or a server that stops, does not wait for queues to empty.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any, Literal

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.events import Event

from tokenloom.storage.formats.names import NAME_PATTERN

DATASET_LABEL = "tokenloom.dataset"  # a label of flow runs
BUILDS = ("build-dataset", "rebuild-dataset")  # the flows that build datasets
FLOWS = (*BUILDS, "verify-dataset")
_UNKNOWN = "unknown"  # the run ended before it knew its dataset

Ending = Literal["failed", "cancelled", "crashed"]


def write_last_line(client: SyncPrefectClient, run: FlowRun, ending: Ending, message: str) -> None:
    """Write how a run ended, and why, to its log."""
    line = {"level": logging.ERROR, "message": f"{ending}: {message}", "timestamp": datetime.now(UTC).isoformat()}
    client.create_logs([{"name": "prefect.flow_runs", "flow_run_id": str(run.id)} | line])


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
        resource={"prefect.resource.id": f"tokenloom.dataset.{dataset}", "prefect.resource.name": dataset},
        payload={
            "dataset": dataset,
            "state": ending,
            "error": error,
            "message": message,
            "flow_run_id": str(run.id),
        },
    )
    client.request("POST", "/events", json=[event.model_dump(mode="json")])


def dataset_of(run: FlowRun) -> str:
    """Return the dataset that a run builds, from its label or else its parameters; "unknown" if neither names it."""
    spec: Any = run.parameters.get("spec")
    given = spec.get("dataset") if isinstance(spec, dict) else None
    named = str(run.labels.get(DATASET_LABEL) or given or "")
    return named if NAME_PATTERN.match(named) else _UNKNOWN
