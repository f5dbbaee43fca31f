"""End the flow runs of a `tokenloom up` that stops: each becomes Crashed at once and frees its concurrency slot.

Otherwise a flow run would stay Running, and keep its slot, until a server misses its heartbeats. Its task runs, which
have no heartbeats, would stay Running forever.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    TaskRunFilter,
    TaskRunFilterFlowRunId,
    TaskRunFilterState,
    TaskRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import TERMINAL_STATES, FlowRun, StateType, WorkerStatus
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed

from tokenloom.console import print_status
from tokenloom.errors import message_of
from tokenloom.flows.runs.events import BUILDS, emit_failed, write_last_line
from tokenloom.server.prefect_server import POOL, WORKER
from tokenloom.tasks.publishing.outcome import crash_message

_VARIABLE = b"PREFECT__FLOW_RUN_ID="  # the process of a flow run has it in its environment
_AT_WORK = set(StateType) - TERMINAL_STATES
_MESSAGE = crash_message("stopped with `tokenloom up`")


def runs_of(processes: Iterable[int]) -> set[UUID]:
    """Return the flow runs that these processes execute (Linux)."""
    return {run for process in processes if (run := _run_of(process))}


def end_runs(runs: Iterable[UUID]) -> None:
    """Mark flow runs as Crashed: `runs`, and those that their worker had claimed but not started.

    Args:
        runs: flow runs whose processes were killed. One that had already ended keeps its state.
    """
    try:
        with get_client(sync_client=True) as client:
            for run_id in {*runs, *_claimed(client)}:
                with suppress(ObjectNotFound):  # it has been deleted
                    _end(client, client.read_flow_run(run_id))
    except httpx.HTTPError as error:  # `tokenloom up` must stop anyway
        print_status(
            f"the server did not record that its runs ended ({message_of(error)}); it will once their heartbeats "
            "are missing"
        )


def _run_of(process: int) -> UUID | None:
    try:
        variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:  # the process has ended
        return None
    found = [value.removeprefix(_VARIABLE) for value in variables if value.startswith(_VARIABLE)]
    return UUID(found[0].decode()) if found else None


def _claimed(client: SyncPrefectClient) -> list[UUID]:
    """Return the runs that the worker had claimed but not started; none if another worker may have claimed them."""
    workers = client.read_workers_for_work_pool(POOL)
    if any(worker.name != WORKER and worker.status == WorkerStatus.ONLINE for worker in workers):
        return []
    pending = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.PENDING])))
    of_pool = WorkPoolFilter(name=WorkPoolFilterName(any_=[POOL]))
    return [run.id for run in client.read_flow_runs(flow_run_filter=pending, work_pool_filter=of_pool)]


def _end(client: SyncPrefectClient, run: FlowRun) -> None:
    if run.state is None or run.state.is_final():
        return
    client.set_flow_run_state(run.id, Crashed(message=_MESSAGE), force=True)
    _end_tasks(client, run)
    write_last_line(client, run, "crashed", _MESSAGE)
    if client.read_flow(run.flow_id).name in BUILDS:
        emit_failed(client, run, "crashed", None, _MESSAGE)


def _end_tasks(client: SyncPrefectClient, run: FlowRun) -> None:
    at_work = TaskRunFilterState(type=TaskRunFilterStateType(any_=[*_AT_WORK]))
    mine = TaskRunFilter(flow_run_id=TaskRunFilterFlowRunId(any_=[run.id]), state=at_work)
    while found := client.read_task_runs(task_run_filter=mine):  # one page per request
        for task_run in found:
            client.set_task_run_state(task_run.id, Crashed(message=_MESSAGE), force=True)
