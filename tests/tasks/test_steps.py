"""Steps: jobs are batched into a limited number of tasks; transient errors are retried, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders.datasets import build, listed_files, make_spec, write_jsonl
from tests.builders.observing import messages_of_builds
from tests.counts import count
from tests.servers.web_server import web_server
from tokenloom.errors import InputError, StoreError, WorkerLost, WorkError
from tokenloom.flows.build_steps import run_build
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage import stores
from tokenloom.storage.stores import remote_calls
from tokenloom.tasks.running.steps import Batch, Job, Share, Step, batches_of, open_workers, should_retry
from tokenloom.tasks.running.workers import WorkerPool
from tokenloom.tasks.sizes import MAX_SMALL_TASKS, MAX_TASKS


class _Answer(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def _raised(error: BaseException, cause: BaseException) -> BaseException:
    try:
        raise error from cause
    except type(error) as raised:
        return raised


@pytest.mark.parametrize(
    ("cause", "is_transient"),
    [
        (ConnectionResetError("by peer"), True),
        (TimeoutError(), True),
        (_Answer(503), True),
        (_Answer(429), True),
        (_Answer(403), False),
        (_Answer(404), False),
        (FileNotFoundError("a"), False),
        (EOFError("cut off"), False),
        (ValueError("no JSON"), False),
        (MemoryError(), False),
    ],
)
def test_only_transient_errors_are_retried(cause: BaseException, is_transient: bool) -> None:
    for error in (InputError("a.gz: can't be read"), StoreError("a: can't be written")):
        assert should_retry(_raised(error, cause), 1) is is_transient


def test_the_number_of_retries_is_limited() -> None:
    assert [should_retry(TimeoutError(), tries) for tries in (1, 3, 4)] == [True, True, False]


@pytest.mark.parametrize("error", [WorkerLost("killed"), WorkError("a.spill")])
def test_a_lost_worker_and_a_damaged_work_file_end_the_build(error: Exception) -> None:
    assert not should_retry(_raised(error, TimeoutError()), 1)


def _fail(cause: BaseException) -> None:
    raise InputError("a: can't be read") from cause


@pytest.mark.parametrize(("cause", "is_transient"), [(TimeoutError(), True), (EOFError(), False)])
def test_an_error_from_a_worker_process_stays_transient_or_permanent(cause: BaseException, is_transient: bool) -> None:
    with WorkerPool(1) as pool, pytest.raises(InputError) as failed:
        pool.call(_fail, [cause])
    assert failed.value.__cause__ is None
    assert should_retry(failed.value, 1) is is_transient


def _spec(folder: Path, url: str, store: str) -> BuildSpec:
    return make_spec(folder / store, [{"kind": "jsonl", "path": f"{url}/a.jsonl"}])


def test_what_grows_with_a_build_is_read_from_the_store_not_returned_by_its_tasks(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [f"document {i}" for i in range(100)])
    spec = make_spec(tmp_path / "store", [{"kind": "jsonl", "path": str(tmp_path / "a.jsonl")}], shard_tokens=500)
    results: dict[str, list[Any]] = {}

    def run(name: str, step: Step, batches: list[Batch]) -> list[list[Any]]:
        results[name] = runner.run(name, step, batches)
        if name == "shuffle":
            for record in tmp_path.glob("store/data/work/builds/*/train-000001*"):
                record.unlink()
        return results[name]

    with open_workers(0) as runner, pytest.raises(WorkError, match=r"train-000001.*; run the same command again"):
        run_build(spec, replace(runner, run=run))
    assert all(
        isinstance(found, int | None) for name in ("tokenize", "shuffle") for batch in results[name] for found in batch
    )
    assert build(spec).num_encoded == 0


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_bytes_do_not_depend_on_which_request_failed(
    num_workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenloom.tasks.running.steps.RETRY_SECONDS", [0.01] * 3)
    write_jsonl(tmp_path / "input" / "a.jsonl", [f"document {i} of a busy server" for i in range(3)])
    with web_server(tmp_path / "input") as (url, server):
        calm = _spec(tmp_path, url, "calm")
        wanted = listed_files(calm, build(calm).version, ".tok")
        num_requests = server.num_requests
    for number in range(num_requests):
        with web_server(tmp_path / "input", busy={number}) as (url, _), messages_of_builds() as messages:
            busy = _spec(tmp_path, url, f"busy{number}")
            assert listed_files(busy, build(busy, num_workers).version, ".tok") == wanted
        assert len(messages) == 1 and "503" in messages[0] and "retrying in" in messages[0]


def test_a_server_that_stays_busy_fails_the_build_with_its_reply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenloom.tasks.running.steps.RETRY_SECONDS", [0.01] * 3)
    write_jsonl(tmp_path / "input" / "a.jsonl", ["a document"])
    with (
        web_server(tmp_path / "input", busy=range(1, 10_000)) as (url, _),
        pytest.raises(InputError, match=r"a\.jsonl.*503"),
    ):
        build(_spec(tmp_path, url, "store"))


def test_a_wrong_endpoint_ends_a_build_after_the_tries_of_one_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(stores, "KINDS", tuple(kind._replace(tries=4) for kind in stores.KINDS))  # eight wait for 6 s
    monkeypatch.setattr(remote_calls, "_answered", set())  # of the servers of other tests
    write_jsonl(tmp_path / "a.jsonl", ["a document"])
    spec = make_spec("s3://none/store", [{"kind": "jsonl", "path": str(tmp_path / "a.jsonl")}])
    with (
        messages_of_builds() as messages,
        pytest.raises(StoreError, match=r"AWS_ENDPOINT_URL is http://127\.0\.0\.1:9\)"),
    ):
        build(spec)
    assert messages == []  # no task was retried


@settings(max_examples=count(25, 1000), deadline=None)
@given(
    st.integers(1, 100_000),
    st.lists(st.integers(0, 10**12), min_size=1, max_size=100),
    st.integers(0, 512),
    st.integers(1, 10**15),
    st.sampled_from([MAX_SMALL_TASKS, MAX_TASKS]),
)
def test_batches_have_each_job_in_order_are_few_and_enough_for_all_workers(
    num_jobs: int, weights: list[int], num_workers: int, task_weight: int, most: int
) -> None:
    jobs = [Job("", i, weight) for i, weight in zip(range(num_jobs), cycle(weights), strict=False)]
    batches = batches_of(jobs, num_workers, task_weight, most)
    assert [job for batch in batches for job in batch.jobs] == list(range(num_jobs))
    assert all(batch.jobs for batch in batches)
    assert len(batches) <= max(most, 4 * num_workers)
    alike = batches_of([Job("", 0, weights[0])] * num_jobs, num_workers, task_weight, most)
    assert len(alike) >= min(num_jobs, 2 * num_workers)


@given(st.lists(st.integers(0, 10**12), max_size=200), st.integers(1, 300))
def test_shares_have_each_job_once_and_weigh_alike(weights: list[int], count: int) -> None:
    jobs = [Job(str(i), i, weight) for i, weight in enumerate(weights)]
    shares = [Share(index, count).of(jobs, lambda job: job.weight) for index in range(count)]
    assert [job for share in shares for job in share] == jobs
    heaviest = max([1, *weights])
    equal = sum(max(1, weight) for weight in weights) / count
    assert all(abs(sum(max(1, job.weight) for job in share) - equal) <= heaviest for share in shares)
