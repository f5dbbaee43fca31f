"""Hooks that Prefect calls when a run ends: its state, last log line and an event report what it did, or why it failed.

Prefect calls a hook in the run's own process after a failure, and after a crash that the process survives long enough
to see, such as SIGTERM. The worker calls it in a new process if a run was cancelled or its process was killed. If the
worker is gone too, `tokenloom up` (up_runs.py) or the server (automations.py) reports the end.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import httpx
from prefect import get_run_logger
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.exceptions import ParameterBindError
from prefect.flows import Flow
from prefect.runtime import flow_run as this_run
from prefect.states import Completed, Crashed, Failed

from tokenloom.flows.runs import log_filter
from tokenloom.flows.runs.events import BUILDS, DATASET_LABEL, Ending, emit_failed, write_last_line
from tokenloom.flows.runs.report import name_stopped_run
from tokenloom.spec.validation import with_rules_in_words
from tokenloom.storage.stores.remote_errors import redacted
from tokenloom.tasks.publishing.outcome import crash_message, joined_problems, outcome


def begin(dataset: str) -> None:
    """Label this run with its dataset, which reports of its end name."""
    with get_client(sync_client=True) as client:
        client.update_flow_run_labels(UUID(this_run.get_id()), {DATASET_LABEL: dataset})


def completed(result: dict[str, Any]) -> State[dict[str, Any]]:
    """Return the final state of a successful build, and log the same message as its last line.

    Args:
        result: see BuildResult.to_json.
    """
    return completed_with(outcome(result), result)


def completed_with(message: str, result: dict[str, Any]) -> State[dict[str, Any]]:
    """Return the final state of a successful run, with its message and result, and log the message as its last line."""
    get_run_logger().info("%s", message)
    log_filter.ended.add(str(this_run.get_id()))
    return Completed(message=message, data=result)


def run_ended(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Report why a run did not complete: in its state, its log and, if it builds, an event."""
    is_build = flow.name in BUILDS
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(flow_run.id)
        ending, error, message = _reason(flow, run, state, is_resumable=is_build)
        _report(client, run, state, ending, message)
        if is_build:
            emit_failed(client, run, ending, error, message)


HOOKS: dict[str, Any] = {name: [run_ended] for name in ("on_failure", "on_cancellation", "on_crashed")}


def _report(client: SyncPrefectClient, run: FlowRun, state: State[Any], ending: Ending, message: str) -> None:
    """Write the reason as the last line of the log and, unless the run was cancelled, in its state and its name."""
    log_filter.ended.add(str(run.id))
    try:
        write_last_line(client, run, ending, message)
    except httpx.HTTPError:
        log_filter.ended.discard(str(run.id))
        raise
    if ending == "cancelled":
        return
    name_stopped_run(client, run, f"{ending}: {message}")
    if message != state.message:
        final: State[Any] = Crashed(message=message) if ending == "crashed" else Failed(message=message)
        client.set_flow_run_state(run.id, final, force=True)


def _reason(
    flow: Flow[..., Any], run: FlowRun, state: State[Any], is_resumable: bool
) -> tuple[Ending, str | None, str]:
    """Return how a run ended, the name of the exception if there was one, and the reason in one line."""
    missing = [name for name in flow.parameters.required or [] if name not in run.parameters]
    if missing:
        return "failed", ParameterBindError.__name__, f"invalid parameters: {', '.join(missing)} must be given"
    if state.is_failed():
        return "failed", *_failure(state)
    message = redacted(state.message or "")
    ending: Ending = "crashed" if state.is_crashed() else "cancelled"
    if is_resumable and message.startswith("Flow run was cancelled"):  # Prefect's default message, which adds nothing
        message = ""
    return ending, None, crash_message(message) if is_resumable else joined_problems(message)


def _failure(state: State[Any]) -> tuple[str | None, str]:
    """Return the name of the exception that failed a run, if it was one, and the reason in one line."""
    error = state.result(raise_on_failure=False)
    if not isinstance(error, BaseException):
        return None, joined_problems(redacted(state.message or ""))
    name, text = type(error).__name__, redacted(str(error))
    if isinstance(error, log_filter.OF_PARAMETERS):
        text = with_rules_in_words(text.replace("Flow run received invalid parameters:", "invalid parameters:"))
    if not text.strip():
        return name, f"{name} without a message"
    return name, joined_problems(text if isinstance(error, log_filter.MISTAKES) else f"{name}: {text}")
