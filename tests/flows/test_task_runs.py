"""The task runs of a step: how many are in flight, and what begins after a failure."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from tests.servers.prefect_servers import send_all
from tests.servers.processes import wait_until
from tokenloom.flows.runners import open_runner
from tokenloom.spec.blocks import DaskRunner, ProcessRunner, RayRunner
from tokenloom.tasks.running.steps import Job

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    # Dask leaves sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
_WORKERS, _JOBS = 2, 12


def _wait(folder: Path, job: int) -> int:
    (folder / f"waits {job}").touch()
    wait_until((folder / "go").exists, 60, interval=0.02)
    return job


def _fail(folder: Path, job: int) -> None:
    """Fail for the first job, while the second one runs."""
    (folder / f"fails {job}").touch()
    wait_until((folder / "fails 1").exists, 60, interval=0.02)
    assert job, "the first job fails"
    time.sleep(1)


@flow
def _wait_and_fail(runner: Any, folder: Path) -> None:
    jobs = [Job(f"{i} on {runner.kind}", i) for i in range(_JOBS)]
    with open_runner(runner, []) as opened:
        assert opened.each("tokenize", partial(_wait, folder), jobs) == list(range(_JOBS))
        opened.each("shuffle", partial(_fail, folder), jobs)


@contextmanager
def _in_flight(kind: type[TaskRunner[Any]]) -> Iterator[tuple[list[int], list[Any]]]:
    """Yield two lists that grow with each submission to a kind of runner: how many are not done, and the future."""
    submit, done, counts, futures = kind.submit, list[Any](), list[int](), list[Any]()

    def counted(self: Any, *args: Any, **options: Any) -> Any:
        futures.append(submit(self, *args, **options))
        futures[-1].add_done_callback(done.append)
        counts.append(len(futures) - len(done))
        return futures[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "submit", counted)
        yield counts, futures


def _shown_on(kind: str) -> list[str | None]:
    """Return the states of the task runs of jobs on a kind of runner, as the server has them."""
    send_all()
    with get_client(sync_client=True) as client:
        return [run.state_name for run in client.read_task_runs() if run.name.endswith(f" on {kind}")]


def run_wait_and_fail(runner: Any, kind: type[TaskRunner[Any]], folder: Path) -> tuple[int, list[Any]]:
    """Run two steps, and fail in the second; return how many of its jobs began, and its futures.

    Of the first, two task runs a worker are in flight, and the server shows only those that have one.
    """
    shown: list[str | None] = []

    def look() -> None:
        wait_until(lambda: len(counts) >= 2 * _WORKERS and len(list(folder.glob("waits *"))) >= _WORKERS)
        shown.extend(wait_until(lambda: len(found := _shown_on(runner.kind)) >= _WORKERS and found))
        (folder / "go").touch()

    with _in_flight(kind) as (counts, futures), pytest.raises(AssertionError, match="the first job fails"):
        looking = threading.Thread(target=copy_context().run, args=[look])
        looking.start()
        _wait_and_fail(runner, folder)
    looking.join()
    assert shown == ["Running"] * _WORKERS
    assert max(counts) == 2 * _WORKERS
    return len(list(folder.glob("fails *"))), futures[_JOBS:]


@pytest.mark.usefixtures("prefect_server")
def test_two_task_runs_a_process_are_in_flight_and_none_begins_after_a_failure(tmp_path: Path) -> None:
    num_begun, futures = run_wait_and_fail(ProcessRunner(workers=_WORKERS), ThreadPoolTaskRunner, tmp_path)
    assert num_begun == _WORKERS
    assert [future.wrapped_future.cancelled() for future in futures] == [False] * _WORKERS + [True] * _WORKERS


@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize("kind", ["dask", pytest.param("ray", marks=pytest.mark.filterwarnings("default"))])
def test_two_task_runs_a_worker_of_a_cluster_are_in_flight_and_after_a_failure_only_they_begin(
    kind: str, tmp_path: Path
) -> None:
    runners = pytest.importorskip(f"prefect_{kind}.task_runners")
    if kind == "dask":
        num_begun, _ = run_wait_and_fail(DaskRunner(kind="dask", workers=_WORKERS), runners.DaskTaskRunner, tmp_path)
    else:
        num_begun, _ = run_wait_and_fail(RayRunner(kind="ray", workers=_WORKERS), runners.RayTaskRunner, tmp_path)
    assert num_begun <= 2 * _WORKERS
