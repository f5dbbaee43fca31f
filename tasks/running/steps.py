"""How flows run their steps, and which failures of a step are retried.

`flows/direct.py` runs steps in threads of this process, `flows/runners.py` as task runs of Prefect: in worker
processes or on a cluster. They differ in how they call a step for a batch of jobs and in how they submit such calls.

Who retries what, how often, and why these levels do not multiply.

    level     what it repeats                      for which errors                      how often
    request   one request to a remote store        transient                             by its library, in two minutes
              (storage/stores)
    task      one call of a step, here             transient                             3 retries, after 1, 5 and 20 s
              (flows/direct.py, runners.py)
    run       a run of a deployment                all but those of the spec, a gate     1 retry
              (flows/build_dataset.py)             or an input

Only tasks repeat what requests gave up, on purpose: a store that is unreachable for a while does not end a build. If
nothing that looks like the store has answered this process before, its endpoint is likely wrong, and a task does not
repeat the request's attempts. Inputs at URLs that are not those of object stores have no level below the task. All
other errors, such as bad input, a lost worker or a damaged work file, are raised at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from tokenloom.errors import WorkerLost, WorkError
from tokenloom.storage.stores.remote_calls import never_answered
from tokenloom.storage.stores.remote_errors import is_transient

MAX_TASKS = 400  # tasks of a step; Prefect is slow to show and store a run with more task runs
MAX_SMALL_TASKS = 120  # tasks of a step that takes a small part of the time
_BATCHES_PER_WORKER = 4  # the least number; then all workers finish at about the same time
RETRY_SECONDS: tuple[float, ...] = (1, 5, 20)


def should_retry(error: BaseException, num_attempts: int) -> bool:
    """Return whether to call a step again that has failed `num_attempts` times, the last time with `error`."""
    if isinstance(error, WorkerLost | WorkError):  # the run ends, whatever caused it
        return False
    return num_attempts <= len(RETRY_SECONDS) and is_transient(error) and not never_answered(error)


class Job(NamedTuple):
    """A job of a step, the label that its task shows, and its weight among the others."""

    label: str
    job: Any
    weight: int = 1


class Call(NamedTuple):
    """A call of a step for a batch of jobs; `label` says for which."""

    label: str
    run: Callable[[], Any]


def batches_of(jobs: Sequence[Job], num_workers: int, task_weight: int, max_tasks: int) -> list[list[Job]]:
    """Return jobs in batches, in order; a batch ends with the job that fills it. See Runner.each."""
    total = sum(max(job.weight, 1) for job in jobs)
    for_workers = total // (_BATCHES_PER_WORKER * max(1, num_workers))
    full = max(min(task_weight, for_workers), -(-total // max_tasks), 1)
    batches: list[list[Job]] = []
    weight = full
    for job in jobs:
        if weight >= full:
            batches.append([])
            weight = 0
        batches[-1].append(job)
        weight += max(job.weight, 1)
    return batches


@dataclass(frozen=True)
class Runner:
    """Runs the steps of a flow.

    Args:
        num_workers: how many jobs run at a time.
        one: runs a step once, in this process: (name, step) -> its result.
        call: runs a step for a batch, where the work happens: (step, jobs) -> their results.
        submit: runs such calls of a step, several at once: (name, calls) -> their results in order; raises the first
            failure.
        stop: ends the calls in progress after a failure.
    """

    num_workers: int
    one: Callable[[str, Callable[[], Any]], Any]
    call: Callable[[Callable[[Any], Any], list[Any]], Any]
    submit: Callable[[str, Sequence[Call]], list[Any]]
    stop: Callable[[], None] = lambda: None

    def each(
        self,
        name: str,
        step: Callable[[Any], Any],
        jobs: Sequence[Job],
        task_weight: int = 1,
        max_tasks: int = MAX_TASKS,
    ) -> list[Any]:
        """Run a step for each job; return the results in order. Batching changes no byte of a version.

        Args:
            name: of the step, for progress and task runs.
            step: the function that a worker calls for each job.
            jobs: in order.
            task_weight: how much a task does; less so that each worker gets several, more if there would be too many.
            max_tasks: the largest number of tasks.
        """
        calls = []
        for batch in batches_of(jobs, self.num_workers, task_weight, max_tasks):
            others = f" and {len(batch) - 1} more" if len(batch) > 1 else ""
            calls.append(Call(batch[0].label + others, partial(self.call, step, [job.job for job in batch])))
        try:
            return [result for results in self.submit(name, calls) for result in results]
        except BaseException:
            self.stop()
            raise
