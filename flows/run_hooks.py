"""How a run ends: its state, the last line of its log and an event say what it did, or why it did not.

Prefect calls a hook in the run's own process after a failure, and after a crash that the process lives to see, such as
SIGTERM. The worker calls it, in a new process, for a run that was cancelled or whose process was killed. Where neither
is left, `tokenloom up` (up_runs.py) or the server (automations.py) has the last word.
"""

from __future__ import annotations

import re
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

from tokenloom import errors
from tokenloom.flows import log_filter
from tokenloom.flows.run_events import DATASET_LABEL, Ending, emit_failed, write_last_line
from tokenloom.spec.messages import with_rules_in_words
from tokenloom.storage.stores.remote_errors import redacted
from tokenloom.tasks.messages.outcome import crash_message, joined_problems, outcome

_BAD_PARAMETERS = {kind.__name__ for kind in log_filter.BAD_PARAMETERS}
_MISTAKES = {*vars(errors), *_BAD_PARAMETERS}  # names of errors of the user
# How the message of a Failed state names the exception.
_FAILURE = re.compile(
    r"^(?:Flow run encountered an exception|Validation of flow parameters failed with error):\s*(\w+): (.*)", re.DOTALL
)


def begin(dataset: str) -> None:
    """Note which dataset this run builds, for whoever has to say how it ended."""
    with get_client(sync_client=True) as client:
        client.update_flow_run_labels(UUID(this_run.get_id()), {DATASET_LABEL: dataset})


def completed(result: dict[str, Any]) -> State[dict[str, Any]]:
    """Return the final state of a run that built, and let its log end with the same words.

    Args:
        result: see BuildResult.to_json.
    """
    message = outcome(result)
    get_run_logger().info("%s", message)
    log_filter.ended.add(str(this_run.get_id()))
    return Completed(message=message, data=result)


def build_ended(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Say why a run that should have built something did not: in its state, its log and an event."""
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(flow_run.id)
        ending, error, message = _reason(flow, run, state, goes_on=True)
        _say(client, run, state, ending, message)
        emit_failed(client, run, ending, error, message)


def verification_ended(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Say in the log of a run that did not complete why."""
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(flow_run.id)
        ending, _, message = _reason(flow, run, state, goes_on=False)
        _say(client, run, state, ending, message)


BUILD_HOOKS: dict[str, Any] = {name: [build_ended] for name in ("on_failure", "on_cancellation", "on_crashed")}
VERIFY_HOOKS: dict[str, Any] = {name: [verification_ended] for name in BUILD_HOOKS}


def _say(client: SyncPrefectClient, run: FlowRun, state: State[Any], ending: Ending, message: str) -> None:
    """Write why a run ended as the last line of its log, and as the message of its state unless it was cancelled."""
    log_filter.ended.add(str(run.id))
    try:
        write_last_line(client, run, ending, message)
    except httpx.HTTPError:
        log_filter.ended.discard(str(run.id))
        raise
    if ending != "cancelled" and message != state.message:
        final: State[Any] = Crashed(message=message) if ending == "crashed" else Failed(message=message)
        client.set_flow_run_state(run.id, final, force=True)


def _reason(flow: Flow[..., Any], run: FlowRun, state: State[Any], goes_on: bool) -> tuple[Ending, str | None, str]:
    """Return how a run ended, the name of the exception if there was one, and why in one line."""
    missing = [name for name in flow.parameters.required or [] if name not in run.parameters]
    if missing:
        return "failed", ParameterBindError.__name__, f"invalid parameters: {', '.join(missing)} must be given"
    message = redacted(state.message or "")
    if state.is_failed():
        error, text = found.groups() if (found := _FAILURE.match(message)) else (None, message)
        if error in _BAD_PARAMETERS:
            text = with_rules_in_words(text.replace("Flow run received invalid parameters:", "invalid parameters:"))
        says_all = error is None or error in _MISTAKES
        return "failed", error, joined_problems(text if says_all else f"{error}: {text}")
    ending: Ending = "crashed" if state.is_crashed() else "cancelled"
    if goes_on and message.startswith("Flow run was cancelled"):  # Prefect's own words, which add nothing
        message = ""
    return ending, None, crash_message(message) if goes_on else joined_problems(message)
