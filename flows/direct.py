"""Builds and verifications without a Prefect server: the same steps in the same order, in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from typing import Any

from tokenloom.errors import SpecError, WorkError
from tokenloom.flows.order import run_build, sample_build
from tokenloom.flows.verify_order import run_verification
from tokenloom.spec import BuildSpec
from tokenloom.spec_runner import BLOCK_URL
from tokenloom.storage.remote_errors import reason_of
from tokenloom.tasks import progress
from tokenloom.tasks.estimate import Estimate
from tokenloom.tasks.jobs import call_all, cut_jobs
from tokenloom.tasks.plan import BuildPlan, cut_file, plan_build, with_partitions
from tokenloom.tasks.publish import BuildResult
from tokenloom.tasks.retries import RETRY_SECONDS, is_worth_another_try
from tokenloom.tasks.workers import WorkerPool, chosen_num_workers


def build_as_spec_says(spec: BuildSpec) -> BuildResult:
    """Build with the processes that the spec's runner asks for; see check_direct and run_build for errors."""
    check_direct(spec, "leave out --direct")
    return build_directly(spec, chosen_num_workers(spec.runner.workers))


def check_direct(spec: BuildSpec, next_step: str) -> None:
    """Raise SpecError if the spec asks for what only Prefect has; `next_step` is what to do instead."""
    only_prefect = {
        "runner": spec.runner.kind != "process",
        "credentials": bool(spec.credentials),
        "store": spec.store.startswith(BLOCK_URL),
    }
    if asked := [key for key, is_asked in only_prefect.items() if is_asked]:
        raise SpecError(f"{asked[0]}: this needs Prefect; {next_step}, or give another {asked[0]}")


def build_directly(spec: BuildSpec, num_workers: int) -> BuildResult:
    """Build a dataset in this process and its children; see run_build for errors.

    Args:
        spec: with absolute paths.
        num_workers: worker processes; 0 does all the work in this process.
    """
    with WorkerPool(num_workers) as pool:
        return run_build(spec, num_workers, _run_one, partial(_run_each, pool))


def plan_directly(spec: BuildSpec, num_workers: int) -> tuple[BuildPlan, Estimate | None]:
    """Return the plan of a build with its partitions, and what it would make (None for a try-out); build nothing.

    Args:
        spec: with absolute paths.
        num_workers: worker processes; 0 reads the files' structure in this process.
    """
    plan = plan_build(spec)
    with WorkerPool(num_workers) as pool:
        run_each = partial(_run_each, pool)
        groups = run_each("cut", partial(call_all, cut_file), cut_jobs(plan, num_workers))
        plan = with_partitions(plan, [cut for group in groups for cut in group])
        return plan, None if spec.limit else sample_build(plan, num_workers, run_each)


def verify_directly(reference: str, deep: bool, spec: BuildSpec | None, num_workers: int) -> dict[str, Any]:
    """Verify a version in this process and its children; see run_verification for arguments and errors."""
    with WorkerPool(num_workers) as pool:
        return run_verification(reference, deep, spec, num_workers, _run_one, partial(_run_each, pool))


def _run_each(pool: WorkerPool, name: str, step: Callable[[Any], Any], jobs: Sequence[tuple[str, Any]]) -> list[Any]:
    calls = [partial(_run_one, name, partial(pool.call, step, job)) for _, job in jobs]
    if pool.num_workers == 0:
        return [call() for call in calls]
    with ThreadPoolExecutor(pool.num_workers) as threads:
        futures = [threads.submit(call) for call in calls]
        try:
            for future in as_completed(futures):
                future.result()
        except WorkError:  # the build mends it with the same workers
            threads.shutdown(cancel_futures=True)
            raise
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            pool.close(now=True)
            raise
        return [future.result() for future in futures]


def _run_one(name: str, step: Callable[[], Any]) -> Any:
    """Run a step, again after each of RETRY_SECONDS if that may help."""
    for num_tries, seconds in enumerate(RETRY_SECONDS, 1):
        try:
            return step()
        except Exception as error:
            if not is_worth_another_try(error, num_tries):
                raise
            progress.report(progress.Message(f"{name}: {reason_of(error)}; tried again in {seconds:g} s"))
            time.sleep(seconds)
    return step()
