"""Prove the fast encoder of a vocabulary in the workers of a build or a command, and say what encodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tokenloom.tasks.encoding.job_tokenizer import load_job_tokenizer
from tokenloom.tasks.running import progress
from tokenloom.tasks.running.steps import Job, Runner
from tokenloom.tokenizers.fast.choice import REFERENCE, Choice, backend_of
from tokenloom.tokenizers.fast.known_parts import Unproven
from tokenloom.tokenizers.fast.machine_check import check_here
from tokenloom.tokenizers.fast.proofs import keep_proof, keep_refusal
from tokenloom.tokenizers.fast.tokenizer import ending_if_hung

if TYPE_CHECKING:
    from tokenloom.tasks.planning.plan import BuildPlan
    from tokenloom.tokenizers.fast.probe import SliceJob

_PROBE_BYTES = 64_000_000  # of usual text, which the reference encodes in the time of a probe
_BATCH = 10  # slices, which take about a second


def proves_first(plan: BuildPlan) -> bool:
    """Return whether a build proves its fast encoder before it encodes: if that is faster than the reference."""
    return plan.spec.limit is None and plan.missing_bytes >= _PROBE_BYTES and plan.choice.unproven is not None


def prove_encoder(definition: Mapping[str, Any], fingerprint: str, runner: Runner) -> None:
    """Compare gigatoken with the reference of a tokenizer, and keep the proof or why there is none.

    Args:
        definition: see load_tokenizer.
        fingerprint: of the tokenizer.
        runner: runs the comparisons.

    Raises TokenizerError as load_job_tokenizer.
    """
    from tokenloom.tokenizers.fast.parts import parts_of
    from tokenloom.tokenizers.fast.probe import prove  # late: the package may be missing
    from tokenloom.tokenizers.fast.probe_texts import NUM_SLICES

    def pool(function: Callable[[SliceJob], Any], jobs: Iterable[SliceJob]) -> list[Any]:
        return runner.each("prove", partial(_run, function), [Job(f"slice {job.index}", job) for job in jobs], _BATCH)

    load = partial(load_job_tokenizer, definition, fingerprint)
    reference = load()
    parts = parts_of(reference)
    progress.report(progress.StepStarted("prove", 2 * NUM_SLICES, "slices", 2 * NUM_SLICES))
    try:
        keep_proof(prove(reference, parts, load, pool))
    except Unproven as error:
        keep_refusal(parts.key, reference.backend, str(error))


def _run(function: Callable[[SliceJob], Any], job: SliceJob) -> Any:
    """Run a job of a probe and report it."""
    with ending_if_hung():
        result = function(job)
    progress.report(progress.Advanced(done=1))
    return result


def encoder_messages(plan: BuildPlan) -> list[str]:
    """Return a line for a build that the reference encodes although a fast encoder might; nothing for others."""
    might = plan.known.encoder_key is not None and backend_of(plan.definition) != REFERENCE
    return [encoder_line(plan, plan.choice)] if plan.missing and might and plan.choice.encoder is None else []


def measured_line(plan: BuildPlan) -> str:
    """Return encoder_line, with the speeds of an encoder that is not proven; measures them unless somebody did here."""
    choice = plan.choice
    if choice.unproven is not None and choice.speeds is None:
        choice = replace(choice, speeds=check_here(plan.definition, str(plan.known.encoder_key), None).speeds)
    return encoder_line(plan, choice)


def encoder_line(plan: BuildPlan, choice: Choice) -> str:
    """Return what encodes, how fast both libraries are on a core, and what decides it, as one line of text."""
    reference = plan.known.backend
    fast, slow = ("", "") if choice.speeds is None else map(_shown, (choice.speeds.fast, choice.speeds.reference))
    if choice.encoder is not None:
        return f"encoded by {choice.encoder}{fast}, which gives the ids of {reference}{slow}"
    if choice.unproven is None:
        return f"encoded by {reference}{slow}: {choice.reason}"
    how = "a build proves it first" if proves_first(plan) else "`tokenloom tokenizer SPEC` proves it in about a minute"
    return f"encoded by {reference}{slow}: {choice.unproven}{fast} is not proven for this vocabulary; {how}"


def _shown(speed: float | None) -> str:
    return "" if speed is None else f" ({speed:,} MB/s a core)"
