"""End the flow runs of a `tokenloom up` that stops: each becomes Crashed at once and frees its concurrency slot.

Otherwise a flow run would stay Running, and keep its slot, until a server misses its heartbeats. Its task runs, which
have no heartbeats, would stay Running forever.
"""

from __future__ import annotations

from contextlib import suppress

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

_AT_WORK = set(StateType) - TERMINAL_STATES
_CLAIMED = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]  # a worker has taken the run
_MESSAGE = crash_message("stopped with `tokenloom up`")
_LATER = "once their heartbeats are missing"


def end_runs() -> None:
    """Mark the runs of the worker, which has stopped, as Crashed; one that has ended keeps its state.

    If another worker serves the same pool, nobody knows whose the runs are, and their heartbeats decide.
    """
    of_pool = WorkPoolFilter(name=WorkPoolFilterName(any_=[POOL]))
    claimed = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_CLAIMED)))
    try:
        with get_client(sync_client=True) as client:
            workers = client.read_workers_for_work_pool(POOL)
            if any(worker.name != WORKER and worker.status == WorkerStatus.ONLINE for worker in workers):
                print_status(f"another worker serves the pool {POOL}: runs that were stopped end {_LATER}")
                return
            for run in client.read_flow_runs(flow_run_filter=claimed, work_pool_filter=of_pool):
                with suppress(ObjectNotFound):  # it has been deleted
                    _end(client, client.read_flow_run(run.id))
    except httpx.HTTPError as error:  # `tokenloom up` must stop anyway
        print_status(f"the server did not record that its runs ended ({message_of(error)}); it will {_LATER}")


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
