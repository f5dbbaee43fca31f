"""Jobs of a step in groups, one a task: the grouping changes no byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Job = TypeVar("Job")

MAX_TASKS = 400  # of a step; a run of more task runs is slow to show and to keep
MAX_SMALL_TASKS = 120  # of a step that takes a small part of the time


@dataclass(frozen=True)
class Weighted(Generic[Job]):
    """A job, the label that its task shows, and its weight among the others of its step."""

    label: str
    job: Job
    weight: int


def grouped(
    jobs: Sequence[Weighted[Job]], num_workers: int, most: int, max_tasks: int = MAX_TASKS
) -> list[tuple[str, list[Job]]]:
    """Group jobs, in order, into at most `max_tasks` tasks: (label of the first and how many more, jobs).

    Args:
        jobs: of one step.
        num_workers: a group is so small that each worker gets several.
        most: weight that a group need not exceed.
        max_tasks: groups that there may be.
    """
    total = sum(max(job.weight, 1) for job in jobs)
    enough = max(min(most, total // (4 * max(1, num_workers))), -(-total // max_tasks), 1)
    groups: list[list[Weighted[Job]]] = []
    weight = enough
    for job in jobs:
        if weight >= enough:
            groups.append([])
            weight = 0
        groups[-1].append(job)
        weight += max(job.weight, 1)
    return [(_label(group), [item.job for item in group]) for group in groups]


def _label(group: Sequence[Weighted[Any]]) -> str:
    first = group[0].label
    return first if len(group) == 1 else f"{first} and {len(group) - 1} more"
