"""Build and plan without a Prefect server: for notebooks, tests and small builds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from tokenloom.errors import SpecError
from tokenloom.flows.build_steps import plan_and_sample, run_build, run_share
from tokenloom.spec.blocks import BLOCK_URL
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.tasks.building import preload_build
from tokenloom.tasks.building.documents import prove_slice
from tokenloom.tasks.building.plan import BuildPlan
from tokenloom.tasks.building.publish import BuildResult
from tokenloom.tasks.running import progress
from tokenloom.tasks.running.steps import Job, Share, open_workers
from tokenloom.tasks.running.workers import chosen_num_workers
from tokenloom.tokenizers import load_job_tokenizer
from tokenloom.tokenizers.fast.proofs import keep_proof

if TYPE_CHECKING:
    from tokenloom.tasks.preview import Estimate, FirstRows
    from tokenloom.tokenizers.fast.probe import SliceJob

_SLICES = 10  # slices of a probe in a batch, which take about a second


def build_from_spec(spec: BuildSpec) -> BuildResult:
    """Build with the number of worker processes in the spec; see check_direct and run_build for errors."""
    check_direct(spec, "run it as a flow (`tokenloom up` in another terminal, or --prefect instead of --direct)")
    return build_directly(spec, chosen_num_workers(spec.runner.workers))


def share_from_spec(spec: BuildSpec, share: Share) -> dict[str, Any]:
    """Do a share of a build with the number of worker processes in the spec; see run_share for the result and errors.

    Raises SpecError for a try-out, which reads its documents one after the other.
    """
    check_direct(spec, "build without --share")
    if spec.limit is not None:
        raise SpecError("limit: a try-out has no shares; build it without --share")
    with open_workers(chosen_num_workers(spec.runner.workers)) as runner:
        runner.preload(partial(preload_build, spec.tokenizer.model_dump()))
        return run_share(spec, runner, share)


def check_direct(spec: BuildSpec, next_step: str) -> None:
    """Raise SpecError if the spec uses a feature that needs Prefect; `next_step` says what to do instead."""
    needs_prefect = {
        "runner": spec.runner.kind != "process",
        "credentials": bool(spec.credentials),
        "store": spec.store.startswith(BLOCK_URL),
    }
    for key, is_used in needs_prefect.items():
        if is_used:
            raise SpecError(f"{key}: this needs Prefect; {next_step}, or give another {key}")


def build_directly(spec: BuildSpec, num_workers: int) -> BuildResult:
    """Build a dataset in this process and its children; see run_build for errors.

    Args:
        spec: with absolute paths.
        num_workers: worker processes; with 0 this process does all the work.
    """
    with open_workers(num_workers) as runner:
        runner.preload(partial(preload_build, spec.tokenizer.model_dump()))
        return run_build(spec, runner)


def plan_directly(spec: BuildSpec, num_workers: int) -> tuple[BuildPlan, Estimate | None, list[FirstRows]]:
    """Return the plan of a build, an estimate (None for a try-out), and the first rows of its conversations.

    Writes only the cache of fingerprints, if it can, and raises the errors that a build raises before it encodes.

    Args:
        spec: with absolute paths.
        num_workers: worker processes; with 0 this process reads the structure of the files.

    Raises:
        TokenloomError: as run_build: a column is missing, and so on; not because the store can't be written.
    """
    with open_workers(num_workers) as runner:
        plan, estimate, conversations = plan_and_sample(spec, runner)
        return plan, None if spec.limit else estimate, conversations


def prove_directly(definition: Mapping[str, Any], fingerprint: str) -> None:
    """Compare gigatoken with the reference of a tokenizer in children of this process, and keep the proof.

    Args:
        definition: see load_tokenizer.
        fingerprint: of the tokenizer.

    Raises:
        Unproven: gigatoken does not give the same ids.
        TokenizerError: as load_job_tokenizer.
        OSError: the proof can't be kept.
    """
    from tokenloom.tokenizers.fast.parts import parts_of  # late: the package may be missing
    from tokenloom.tokenizers.fast.probe import NUM_SLICES, prove

    def pool(function: Callable[[SliceJob], Any], slices: Iterable[SliceJob]) -> list[Any]:
        jobs = [Job(f"slice {each.index}", each) for each in slices]
        return runner.each("prove", partial(prove_slice, function), jobs, _SLICES)

    load = partial(load_job_tokenizer, definition, fingerprint)
    reference = load()
    with open_workers(chosen_num_workers(None)) as runner:
        progress.report(progress.StepStarted("prove", NUM_SLICES, "slices", NUM_SLICES))
        keep_proof(prove(reference, parts_of(reference), load, pool))
