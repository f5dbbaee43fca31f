"""A build without a Prefect server: the same steps in the same order, for notebooks, tests and small builds."""

from __future__ import annotations

from functools import partial

from tokenloom.errors import SpecError
from tokenloom.flows.build_steps import run_build, sample_build
from tokenloom.flows.direct_steps import run_each_directly, run_one_directly
from tokenloom.flows.source_lines import naming_source_lines
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.spec.runner import BLOCK_URL
from tokenloom.tasks.estimate import Estimate
from tokenloom.tasks.jobs import call_all, cut_jobs
from tokenloom.tasks.plan import BuildPlan, cut_file, plan_build, with_partitions
from tokenloom.tasks.publish import BuildResult
from tokenloom.tasks.running.workers import WorkerPool, chosen_num_workers


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
        return run_build(spec, num_workers, run_one_directly, partial(run_each_directly, pool))


def plan_directly(spec: BuildSpec, num_workers: int) -> tuple[BuildPlan, Estimate | None]:
    """Return the plan of a build with its partitions, and what it would make (None for a try-out).

    Writes nothing but remembered fingerprints, and refuses what a build refuses before it encodes.

    Args:
        spec: with absolute paths.
        num_workers: worker processes; 0 reads the files' structure in this process.

    Raises:
        TokenloomError: as run_build: of a store that can't be written, a column that is missing, and the like.
    """
    with naming_source_lines(spec), WorkerPool(num_workers) as pool:
        plan = plan_build(spec)
        if not plan.published:
            plan.store.check_writable()
        run_each = partial(run_each_directly, pool)
        groups = run_each("cut", partial(call_all, cut_file), cut_jobs(plan, num_workers))
        plan = with_partitions(plan, [cut for group in groups for cut in group])
        estimate = sample_build(plan, num_workers, run_each)  # reads rows, of a try-out too: they may lack a column
        return plan, None if spec.limit else estimate
