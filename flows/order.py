"""The order of a build's steps, written once: run by Prefect (build_dataset.py) or directly (direct.py)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from tokenloom.errors import WorkError
from tokenloom.flows.source_lines import naming_source_lines
from tokenloom.spec import BuildSpec
from tokenloom.tasks import progress
from tokenloom.tasks.assign import assign_shards
from tokenloom.tasks.estimate import (
    Estimate,
    check_disk,
    estimate_build,
    sample_jobs,
    sample_partition,
    surely_fits,
)
from tokenloom.tasks.jobs import call_all, check_jobs, cut_jobs, first_jobs, shuffle_jobs, tokenize_jobs
from tokenloom.tasks.plan import BuildPlan, cut_file, plan_build, with_first_partitions, with_partitions
from tokenloom.tasks.publish import BuildResult, finish_build, publish_version
from tokenloom.tasks.records import record_path
from tokenloom.tasks.shuffle import shuffle_shard
from tokenloom.tasks.tokenization import tokenize_first, tokenize_partition
from tokenloom.tasks.validate import check_documents, validate_build

# Runs a step alone in this process: (name, step) -> its result.
RunOne = Callable[[str, Callable[[], Any]], Any]
# Runs a step for each (label, job), several at once in workers: (name, step, jobs) -> results in order.
RunEach = Callable[[str, Callable[[Any], Any], Sequence[tuple[str, Any]]], list[Any]]

_MOST_REPAIRS = 2  # of one spill


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
    with naming_source_lines(spec):
        return _run_steps(spec, num_workers, run_one, run_each)


def _run_steps(spec: BuildSpec, num_workers: int, run_one: RunOne, run_each: RunEach) -> BuildResult:
    start = time.monotonic()
    plan: BuildPlan = run_one("plan", lambda: plan_build(spec))
    progress.report(progress.Planned(spec.dataset, plan.version, plan.published))
    if plan.published:
        return finish_build(plan, start)
    plan.store.remove_stale_temporaries()
    if problem := plan.store.exclusion_problem():
        progress.report(progress.Message(problem))
    progress.report(progress.StepStarted("cut", 0))
    cuts = _flat(run_each("cut", partial(call_all, cut_file), cut_jobs(plan, num_workers)))
    repairs: Counter[str | None] = Counter()
    encoded: set[str] = set()
    plan = with_partitions(plan, cuts)
    refuse_too_large(plan, num_workers, run_each)
    while True:
        try:
            plan, published = _encode_and_publish(plan, num_workers, run_one, run_each, encoded)
            return finish_build(plan, start, published, encoded)
        except WorkError as error:
            repairs[error.spill] += 1
            if repairs[error.spill] > _MOST_REPAIRS:
                raise
            progress.report(progress.Message(str(error)))
            if error.spill:
                plan.store.remove(record_path(error.spill))
            plan = with_partitions(plan, cuts)


def refuse_too_large(plan: BuildPlan, num_workers: int, run_each: RunEach) -> None:
    """Raise StoreError if the disk can't hold the build; a sample is taken only where that could be."""
    if plan.spec.limit is None and not surely_fits(plan):
        check_disk(plan, sample_build(plan, num_workers, run_each))


def sample_build(plan: BuildPlan, num_workers: int, run_each: RunEach) -> Estimate:
    """Return what a build makes, from a sample of its partitions."""
    jobs = sample_jobs(plan)
    samples = _flat(run_each("sample", partial(call_all, sample_partition), jobs))
    return estimate_build(plan, list(zip(_flat([group for _, group in jobs]), samples, strict=True)), num_workers)


def _encode_and_publish(
    plan: BuildPlan, num_workers: int, run_one: RunOne, run_each: RunEach, encoded: set[str]
) -> tuple[BuildPlan, bool]:
    """Return the plan as it was carried out and whether its version was published; note in `encoded` what was made."""
    seconds: dict[str, float] = {}
    with _step("tokenize", seconds, sum(part.num_bytes for part in plan.missing)):
        if plan.spec.limit is None:
            run_each("tokenize", partial(call_all, tokenize_partition), tokenize_jobs(plan, num_workers))
        else:
            plan = with_first_partitions(plan, run_each("tokenize", tokenize_first, first_jobs(plan)))
        encoded.update(part.spill for part in plan.missing)
    with _step("assign", seconds):
        assignment = run_one("assign", lambda: assign_shards(plan))
    with _step("shuffle", seconds, sum(total["tokens"] for total in assignment.totals.values())):
        jobs = shuffle_jobs(plan, assignment, num_workers)
        records = _flat(run_each("shuffle", partial(call_all, shuffle_shard), jobs))
    with _step("validate", seconds):
        checks = check_jobs(plan, records, num_workers)
        num_chosen = sum(len(check.samples) for _, group in checks for check in group)
        num_checked = sum(_flat(run_each("check", partial(call_all, check_documents), checks)))
        measured = run_one("validate", lambda: validate_build(plan, assignment, records, num_chosen, num_checked))
    with _step("publish", seconds):
        published = run_one("publish", lambda: publish_version(plan, assignment, records, measured, seconds))
    return plan, published


def _flat(groups: list[list[Any]]) -> list[Any]:
    return [item for group in groups for item in group]


@contextmanager
def _step(name: str, seconds: dict[str, float], total: int = 0) -> Iterator[None]:
    progress.report(progress.StepStarted(name, total))
    start = time.monotonic()
    yield
    seconds[name] = round(time.monotonic() - start, 3)
