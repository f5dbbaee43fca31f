"""A build without a Prefect server: the same steps in the same order, for notebooks, tests and small builds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from typing import Any

from tokenloom.errors import WorkerLost, WorkError
from tokenloom.flows.order import run_build, sample_build
from tokenloom.spec import BuildSpec
from tokenloom.tasks.estimate import Estimate
from tokenloom.tasks.jobs import call_all, cut_jobs
from tokenloom.tasks.plan import BuildPlan, cut_file, plan_build, with_partitions
from tokenloom.tasks.publish import BuildResult
from tokenloom.tasks.workers import WorkerPool

_TRIES = 3


def build_directly(spec: BuildSpec, num_workers: int) -> BuildResult:
    """Build a dataset in this process and its children; see run_build for errors.

    Args:
        spec: with absolute paths.
        num_workers: worker processes; 0 does all the work in this process.
    """
    with WorkerPool(num_workers) as pool:
        return run_build(spec, num_workers, lambda name, step: step(), partial(_run_each, pool))


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


def _run_each(pool: WorkerPool, name: str, step: Callable[[Any], Any], jobs: Sequence[tuple[str, Any]]) -> list[Any]:
    if pool.num_workers == 0:
        return [step(job) for _, job in jobs]
    with ThreadPoolExecutor(pool.num_workers) as threads:
        futures = [threads.submit(_try_again, pool, step, job) for _, job in jobs]
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


def _try_again(pool: WorkerPool, step: Callable[[Any], Any], job: Any) -> Any:
    """Call a worker; one that was lost is replaced, up to _TRIES in all."""
    for _ in range(_TRIES - 1):
        try:
            return pool.call(step, job)
        except WorkerLost:
            if pool.closed:
                raise
    return pool.call(step, job)
