"""Group the jobs of a step into batches, one for each task, and run them. Batching changes no byte of a version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from tokenloom.tasks.running.steps import RunEach, StepJobs

Job = TypeVar("Job")
Result = TypeVar("Result")

MAX_TASKS = 400  # tasks of a step; Prefect is slow to show and store a run with more task runs
MAX_SMALL_TASKS = 120  # tasks of a step that takes a small part of the time
_BATCHES_PER_WORKER = 4  # the least number; then all workers finish at about the same time


@dataclass(frozen=True)
class WeightedJob(Generic[Job]):
    """A job, the label that its task shows, and its weight among the others of its step."""

    label: str
    job: Job
    weight: int


def batch_jobs(
    jobs: Sequence[WeightedJob[Job]], num_workers: int, max_weight: int, max_tasks: int = MAX_TASKS
) -> list[tuple[str, list[Job]]]:
    """Return jobs in batches, in order: (label of the first and how many more, jobs).

    A batch ends with the job that reaches its weight. This is `max_weight`, or less so that each worker gets several
    batches, or more if there would be too many batches.

    Args:
        jobs: the jobs of one step.
        num_workers: how many work at a time.
        max_weight: how much one task should do.
        max_tasks: the largest number of batches.
    """
    total = sum(max(job.weight, 1) for job in jobs)
    for_workers = total // (_BATCHES_PER_WORKER * max(1, num_workers))
    full_weight = max(min(max_weight, for_workers), -(-total // max_tasks), 1)
    batches: list[list[WeightedJob[Job]]] = []
    weight = full_weight
    for job in jobs:
        if weight >= full_weight:
            batches.append([])
            weight = 0
        batches[-1].append(job)
        weight += max(job.weight, 1)
    return [(_label([job.label for job in batch]), [job.job for job in batch]) for batch in batches]


def run_batches(
    run_each: RunEach, name: str, step: Callable[[Job], Result], batches: Sequence[tuple[str, list[Job]]]
) -> list[Result]:
    """Run a step for each job of each batch; return the results in the order of the jobs.

    Args:
        run_each: runs the batches, several at the same time.
        name: the step's name, for progress and task runs.
        step: the function that a worker calls for each job.
        batches: (label, jobs), see batch_jobs.
    """
    return run_batches_together(run_each, (name, step, batches))[0]


def run_batches_together(run_each: RunEach, *steps: StepJobs) -> list[list[Any]]:
    """Run independent steps, each (name, step, batches) as in run_batches; return the results of each step."""
    batched = [(name, partial(_run_batch, step), batches) for name, step, batches in steps]
    return [[result for batch in results for result in batch] for results in run_each.run_together(*batched)]


def _run_batch(step: Callable[[Job], Result], jobs: Sequence[Job]) -> list[Result]:
    """Run a step for each job of a batch, one after the other."""
    return [step(job) for job in jobs]


def _label(labels: Sequence[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{labels[0]} and {len(labels) - 1} more"
