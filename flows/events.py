"""The events of a build: a version was published, or the build failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.events import Event, emit_event
from prefect.flows import Flow
from prefect.runtime import flow_run as this_run

from tokenloom.errors import one_line
from tokenloom.storage.formats.manifest import NAME_PATTERN
from tokenloom.storage.stores.remote_errors import redacted
from tokenloom.tasks.building.outcome import outcome_line, reading_lines

_DATASET = "tokenloom.dataset"  # a label of flow runs
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


def label_run(dataset: str) -> None:
    """Label this run with its dataset, which the event of its failure names."""
    with get_client(sync_client=True) as client:
        client.update_flow_run_labels(UUID(this_run.get_id()), {_DATASET: dataset})


def emit_published(dataset: str, result: Mapping[str, Any]) -> None:
    """Emit the event `tokenloom.dataset.published` of this flow run.

    Args:
        dataset: its name.
        result: see BuildResult.to_json.
    """
    tag = result["tag"] if result["tag_moved"] else "none"
    emit_event(
        event="tokenloom.dataset.published",
        resource=_resource(dataset) | {"tokenloom.version": result["version"], "tokenloom.tag": tag},
        payload={
            "dataset": dataset,
            **{name: result[name] for name in _PUBLISHED},
            "flow_run_id": this_run.get_id(),
            "message": outcome_line(result),
            "read": reading_lines(result["reference"]),
        },
    )


def emit_failed(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Emit the event `tokenloom.dataset.failed`: a hook of builds.

    Prefect calls it in the run's own process, or in one of the worker if that process is gone. It sends the event
    before it returns: a process that got SIGTERM does not wait for queues to empty.
    """
    error = state.result(raise_on_failure=False) if state.is_failed() else None
    with get_client(sync_client=True) as client:
        dataset = _dataset_of(client.read_flow_run(flow_run.id))
        event = Event(
            event="tokenloom.dataset.failed",
            resource=_resource(dataset),
            payload={
                "dataset": dataset,
                "state": "failed" if state.is_failed() else "crashed" if state.is_crashed() else "cancelled",
                "error": type(error).__name__ if isinstance(error, BaseException) else None,
                "message": one_line(redacted(state.message or "")),
                "flow_run_id": str(flow_run.id),
            },
        )
        client.request("POST", "/events", json=[event.model_dump(mode="json")])


#: of the flows that build
FAILURE_HOOKS: dict[str, Any] = {name: [emit_failed] for name in ("on_failure", "on_cancellation", "on_crashed")}


def _resource(dataset: str) -> dict[str, str]:
    return {"prefect.resource.id": f"tokenloom.dataset.{dataset}", "prefect.resource.name": dataset}


def _dataset_of(run: FlowRun) -> str:
    """Return the dataset that a run builds, from its label or else its parameters; "unknown" if neither names it."""
    spec: Any = run.parameters.get("spec")
    given = spec.get("dataset") if isinstance(spec, dict) else None
    named = str(run.labels.get(_DATASET) or given or "")
    return named if NAME_PATTERN.match(named) else "unknown"
