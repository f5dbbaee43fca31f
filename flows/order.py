"""The order of a build's steps, written once: run by Prefect (build_dataset.py) or directly (direct.py)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tokenloom.errors import WorkError
from tokenloom.spec import BuildSpec
from tokenloom.tasks import progress
from tokenloom.tasks.assign import assign_shards
from tokenloom.tasks.jobs import shuffle_jobs, tokenize_batches, tokenize_partitions
from tokenloom.tasks.plan import BuildPlan, cut_files, cut_jobs, plan_build, with_partitions
from tokenloom.tasks.publish import BuildResult, build_result, move_latest, publish_version
from tokenloom.tasks.shuffle import shuffle_shard
from tokenloom.tasks.tokenization import record_path
from tokenloom.tasks.validate import check_documents, choose_samples, validate_build

# Runs a step alone in this process: (name, step) -> its result.
RunOne = Callable[[str, Callable[[], Any]], Any]
# Runs a step for each (label, job), several at once in workers: (name, step, jobs) -> results in order.
RunEach = Callable[[str, Callable[[Any], Any], Sequence[tuple[str, Any]]], list[Any]]

_SPILL_REPAIRS = 3


def run_build(spec: BuildSpec, num_workers: int, run_one: RunOne, run_each: RunEach) -> BuildResult:
    """Build a version of a dataset and publish it; at once if it is published already.

    Args:
        spec: with absolute paths.
        num_workers: processes at work, for cutting the work; it changes no byte.
        run_one: how a step is run.
        run_each: how a step is run for many jobs.

    Raises:
        TokenloomError: what is wrong, where, and the next step; nothing is visible then.
    """
    plan: BuildPlan = run_one("plan", lambda: plan_build(spec))
    if plan.published:
        return build_result(plan, published=False, tag_note=move_latest(plan), num_encoded=0)
    plan.store.remove_stale_temporaries()
    cuts = run_each("cut", cut_files, cut_jobs(plan))
    plan = with_partitions(plan, cuts)
    for _ in range(_SPILL_REPAIRS):
        try:
            return _encode_and_publish(plan, num_workers, run_one, run_each)
        except WorkError as error:
            progress.report(progress.Message(str(error)))
            if error.spill:
                plan.store.remove(record_path(error.spill))
            plan = with_partitions(plan, cuts)
    return _encode_and_publish(plan, num_workers, run_one, run_each)


def _encode_and_publish(plan: BuildPlan, num_workers: int, run_one: RunOne, run_each: RunEach) -> BuildResult:
    seconds: dict[str, float] = {}
    batches = tokenize_batches(plan, num_workers)
    with _step("tokenize", seconds, sum(p.num_bytes for p in plan.missing), "bytes"):
        run_each("tokenize", tokenize_partitions, batches)
    with _step("assign", seconds):
        assignment = run_one("assign", lambda: assign_shards(plan))
    with _step("shuffle", seconds, sum(total["tokens"] for total in assignment.totals.values()), "tokens"):
        records = run_each("shuffle", shuffle_shard, shuffle_jobs(plan, assignment.shards))
    with _step("validate", seconds):
        checks = choose_samples(plan, records, num_jobs=max(1, num_workers))
        checked = sum(run_each("check", check_documents, [(job.file.path, job) for job in checks]))
        measured = run_one("validate", lambda: validate_build(plan, assignment, records, checked))
    with _step("publish", seconds):
        published = run_one("publish", lambda: publish_version(plan, assignment, records, measured, seconds))
    return build_result(plan, published, move_latest(plan), sum(len(jobs) for _, jobs in batches))


@contextmanager
def _step(name: str, seconds: dict[str, float], total: int = 0, unit: str = "") -> Iterator[None]:
    progress.report(progress.StepStarted(name, total, unit))
    start = time.monotonic()
    yield
    seconds[name] = round(time.monotonic() - start, 3)
