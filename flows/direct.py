"""Build, plan, verify and export without a Prefect server: for notebooks, tests and small builds.

The steps are those of build_steps.py, verify_steps.py and export_steps.py. Threads of this process run them in a pool
of workers and retry transient failures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from tokenloom.errors import SpecError
from tokenloom.flows.verify_steps import run_verification
from tokenloom.storage.stores.remote_errors import reason_of
from tokenloom.tasks.preload import preload_build
from tokenloom.tasks.running import progress
from tokenloom.tasks.running.steps import RETRY_SECONDS, Call, Runner, should_retry
from tokenloom.tasks.running.workers import WorkerPool, chosen_num_workers

# Builds import pydantic in their functions: verifying a small version takes less time than that import.
if TYPE_CHECKING:
    from tokenloom.spec.build_spec import BuildSpec
    from tokenloom.tasks.building.plan import BuildPlan
    from tokenloom.tasks.building.publish import BuildResult
    from tokenloom.tasks.exporting.base import ExportOptions
    from tokenloom.tasks.exporting.export import ExportResult
    from tokenloom.tasks.preview import Estimate


def build_from_spec(spec: BuildSpec) -> BuildResult:
    """Build with the number of worker processes in the spec; see check_direct and run_build for errors."""
    check_direct(spec, "run it as a flow (`tokenloom up` in another terminal, or --prefect instead of --direct)")
    return build_directly(spec, chosen_num_workers(spec.runner.workers))


def check_direct(spec: BuildSpec, next_step: str) -> None:
    """Raise SpecError if the spec uses a feature that needs Prefect; `next_step` says what to do instead."""
    if found := _keys_that_need_prefect(spec):
        raise SpecError(f"{found[0]}: this needs Prefect; {next_step}, or give another {found[0]}")


def _keys_that_need_prefect(spec: BuildSpec) -> list[str]:
    from tokenloom.spec.blocks import BLOCK_URL

    needs_prefect = {
        "runner": spec.runner.kind != "process",
        "credentials": bool(spec.credentials),
        "store": spec.store.startswith(BLOCK_URL),
    }
    return [key for key, is_used in needs_prefect.items() if is_used]


def build_directly(spec: BuildSpec, num_workers: int) -> BuildResult:
    """Build a dataset in this process and its children; see run_build for errors.

    Args:
        spec: with absolute paths.
        num_workers: worker processes; with 0 this process does all the work.
    """
    with _open_workers(num_workers, spec.tokenizer.model_dump()) as runner:
        from tokenloom.flows.build_steps import run_build  # late: the workers' server imports at the same time

        return run_build(spec, runner)


def plan_directly(spec: BuildSpec, num_workers: int) -> tuple[BuildPlan, Estimate | None]:
    """Return the plan of a build with its partitions, and an estimate of the result (None for a try-out).

    Writes only the cache of fingerprints, if it can, and raises the errors that a build raises before it encodes.

    Args:
        spec: with absolute paths.
        num_workers: worker processes; with 0 this process reads the structure of the files.

    Raises:
        TokenloomError: as run_build: a column is missing, and so on; not because the store can't be written.
    """
    from tokenloom.flows.build_steps import plan_and_sample

    with _open_workers(num_workers) as runner:
        plan, estimate = plan_and_sample(spec, runner)
        return plan, None if spec.limit else estimate


def prove_directly(definition: Mapping[str, Any], fingerprint: str) -> None:
    """Prove the fast encoder of a tokenizer in children of this process; see prove_encoder."""
    from tokenloom.tasks.building.encoders import prove_encoder

    with _open_workers(chosen_num_workers(None)) as runner:
        prove_encoder(definition, fingerprint, runner)


def verify_directly(reference: str, deep: bool, spec: BuildSpec | None, num_workers: int) -> dict[str, Any]:
    """Verify a version in this process and its children; see run_verification for arguments and errors."""
    with _open_workers(num_workers) as runner:
        return dict(run_verification(reference, deep, spec, runner))


def export_directly(
    reference: str, name: str, destination: str, options: ExportOptions, num_workers: int
) -> ExportResult:
    """Export a version in this process and its children; see run_export for arguments and errors."""
    from tokenloom.flows.export_steps import run_export

    with _open_workers(num_workers) as runner:
        return run_export(reference, name, destination, options, runner)


@contextmanager
def _open_workers(num_workers: int, tokenizer: Mapping[str, Any] | None = None) -> Iterator[Runner]:
    """Yield a Runner, whose workers end with the block; their server loads the tokenizer, if one is given, at once."""
    with WorkerPool(num_workers) as pool, ThreadPoolExecutor(max(1, num_workers)) as threads:
        if tokenizer is not None:
            pool.preload(preload_build, tokenizer)
        yield Runner(num_workers, run_one_directly, pool.call, partial(_submit_all, threads, num_workers), pool.close)


def _submit_all(threads: ThreadPoolExecutor, num_workers: int, name: str, calls: Sequence[Call]) -> list[Any]:
    """Run each call in a thread, or here without workers; return the results in order, or raise the first failure."""
    if not num_workers:
        return [run_one_directly(name, call.run) for call in calls]
    futures = [threads.submit(run_one_directly, name, call.run) for call in calls]
    try:
        for future in as_completed(futures):
            future.result()
    except BaseException:
        for future in futures:
            future.cancel()
        raise
    return [future.result() for future in futures]


def run_one_directly(name: str, step: Callable[[], Any]) -> Any:
    """Run a step; retry a transient failure after each of RETRY_SECONDS, and say a reason once."""
    said = ""
    for num_attempts, seconds in enumerate(RETRY_SECONDS, 1):
        try:
            return step()
        except Exception as error:
            if not should_retry(error, num_attempts):
                raise
            reason = reason_of(error)
            shown = "failed again in the same way" if reason == said else reason
            progress.report(progress.Message(f"{name}: {shown}; retrying in {seconds:g} s"))
            said = reason
            time.sleep(seconds)
    return step()
