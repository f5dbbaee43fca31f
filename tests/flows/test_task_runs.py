"""The task runs of a step: how many are in flight, what begins after a failure, and the rows that they add."""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from tests.counts import count, full_only
from tests.servers.prefect_servers import send_all
from tests.servers.processes import wait_until
from tokenloom.flows.runners import open_runner
from tokenloom.spec.blocks import DaskRunner, ProcessRunner, RayRunner
from tokenloom.tasks.running.steps import Job
from tokenloom.tasks.sizes import MAX_TASKS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    # Dask leaves sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
_WORKERS, _JOBS = 2, 12
_GUIDE = Path(__file__).parents[2] / "docs/guides/teams.md"


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
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("dask", marks=full_only),
        pytest.param("ray", marks=pytest.mark.filterwarnings("default")),  # its own
    ],
)
def test_two_task_runs_a_worker_of_a_cluster_are_in_flight_and_after_a_failure_only_they_begin(
    kind: str, tmp_path: Path
) -> None:
    runners = pytest.importorskip(f"prefect_{kind}.task_runners")
    if kind == "dask":
        num_begun, _ = run_wait_and_fail(DaskRunner(kind="dask", workers=_WORKERS), runners.DaskTaskRunner, tmp_path)
    else:
        num_begun, _ = run_wait_and_fail(RayRunner(kind="ray", workers=_WORKERS), runners.RayTaskRunner, tmp_path)
    assert num_begun <= 2 * _WORKERS


def _same(job: int) -> int:
    return job


@flow
def _step(num_jobs: int, most: int) -> None:
    with open_runner(ProcessRunner(workers=_WORKERS), []) as runner:
        jobs = [Job(f"job {i}", i) for i in range(num_jobs)]
        assert runner.each("tokenize", _same, jobs, max_tasks=most) == list(range(num_jobs))


def _rows(home: Path) -> Counter[str]:
    """Return how many rows each table of a server's database has, and its size in `bytes`."""
    send_all()
    with closing(sqlite3.connect(home / "prefect.db")) as database:

        def number(query: str) -> int:
            return int(database.execute(query).fetchone()[0])

        tables = database.execute("select name from sqlite_master where type = 'table'").fetchall()
        rows = Counter({name: number(f"select count(*) from {name}") for (name,) in tables})
        return rows + Counter(bytes=number("pragma page_count") * number("pragma page_size"))


def _rows_at_rest(home: Path) -> Counter[str]:
    """Return the same, once no row has been added for a second."""
    seen = [Counter[str]()]
    wait_until(lambda: seen.append(_rows(home)) or seen[-1] == seen[-2], interval=1)  # type: ignore[func-returns-value]
    return seen[-1]


def test_a_task_run_adds_the_rows_that_the_guide_states_however_many_jobs_it_has(prefect_server: Path) -> None:
    num_jobs, num_tasks = count((2_000, 30), (100_000, MAX_TASKS))
    stated = {name: int(number) for number, name in re.findall(r"(\d+) in\s+`(\w+)`", _GUIDE.read_text())}
    assert f"adds {sum(stated.values())} rows, 20 KB" in _GUIDE.read_text()
    with get_client(sync_client=True) as client:
        client.create_flow(_step)
    before = _rows_at_rest(prefect_server)
    _step(num_jobs, num_tasks)
    wait_until(lambda: _rows(prefect_server)["task_run_state"] >= before["task_run_state"] + 3 * num_tasks)
    added = _rows_at_rest(prefect_server) - before
    assert added.pop("bytes") <= 30_000 * num_tasks
    of_run = Counter(flow_run=1, flow_run_state=3, log=2, events=3, event_resources=6)
    assert added == Counter({name: number * num_tasks for name, number in stated.items()}) + of_run
