"""How a build, a verification or an export runs its steps, and which failures of a step are retried.

A step is a function of a job. A Runner divides the jobs of a step into batches: `open_workers` runs these in worker
processes of this machine, `flows/runners.py` as task runs of Prefect, here or on a cluster.

Who retries what, how often, and why these levels do not multiply.

    level     what it repeats                      for which errors                      how often
    request   one request to a remote store        transient                             by its library, in two minutes
              (storage/stores)
    batch     one batch of a step                  transient                             3 retries, after 1, 5 and 20 s
              (here, flows/runners.py)
    run       a run of a deployment                all but those of the spec, a gate     1 retry
              (flows/build_dataset.py)             or an input

Only batches repeat what requests gave up, on purpose: a store that is unreachable for a while does not end a build. If
nothing that looks like the store has answered this process before, its endpoint is likely wrong, and a batch does not
repeat the request's attempts. Inputs at URLs that are not those of object stores have no level below the batch. All
other errors, such as bad input, a lost worker or a damaged work file, are raised at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain
from typing import Any, NamedTuple, TypeVar

from tokenloom.errors import WorkerLost, WorkError
from tokenloom.storage.stores.remote_calls import never_answered
from tokenloom.storage.stores.remote_errors import is_transient, reason_of
from tokenloom.tasks.running import progress
from tokenloom.tasks.running.workers import WorkerPool
from tokenloom.tasks.sizes import MAX_TASKS, TASKS_PER_WORKER

RETRY_SECONDS: tuple[float, ...] = (1, 5, 20)


def should_retry(error: BaseException, num_attempts: int) -> bool:
    """Return whether to run a batch again that has failed `num_attempts` times, the last time with `error`."""
    if isinstance(error, WorkerLost | WorkError):  # the run ends, whatever caused it
        return False
    return num_attempts <= len(RETRY_SECONDS) and is_transient(error) and not never_answered(error)


class Job(NamedTuple):
    """A job of a step, the label that its task shows, and its weight among the others."""

    label: str
    job: Any
    weight: int = 1


class Batch(NamedTuple):
    """Some jobs of a step, which a worker does one after the other; `label` names them."""

    label: str
    jobs: list[Any]


Step = Callable[[Any], Any]
Item = TypeVar("Item")


@dataclass(frozen=True)
class Share:
    """Part `index` of `count` equal parts of a step's work, for one of several machines; `index` is in [0, count)."""

    index: int
    count: int

    def of(self, items: Sequence[Item], weight_of: Callable[[Item], int] = lambda _: 1) -> list[Item]:
        """Return the items of this share: neighbours, which weigh about as much as those of each other share.

        Each item is in one share, which depends only on the weights of all items, whatever is done already.
        """
        weights = [max(weight_of(item), 1) for item in items]
        ends = list(accumulate(weights))
        middles = (2 * end - weight for end, weight in zip(ends, weights, strict=True))  # twice, as whole numbers
        shares = (middle * self.count // (2 * ends[-1]) for middle in middles)
        return [item for item, share in zip(items, shares, strict=True) if share == self.index]


ALL = Share(0, 1)


class WorkLeft(Exception):
    """Other shares of a build have something of a step left: `counts` says how much of what."""

    def __init__(self, counts: dict[str, int]) -> None:
        super().__init__(counts)
        self.counts = counts


def refuse_left(**counts: int) -> None:
    """Raise WorkLeft if a count is not 0."""
    if any(counts.values()):
        raise WorkLeft(counts)


def batches_of(jobs: Sequence[Job], num_workers: int, task_weight: int, max_tasks: int = MAX_TASKS) -> list[Batch]:
    """Divide jobs into batches, in order; a batch ends with the job that fills it. See Runner.each."""
    total = sum(max(job.weight, 1) for job in jobs)
    for_workers = total // (TASKS_PER_WORKER * max(1, num_workers))
    full = max(min(task_weight, for_workers), -(-total // max(max_tasks, TASKS_PER_WORKER * num_workers)), 1)
    batches: list[list[Job]] = []
    weight = full
    for job in jobs:
        if weight >= full:
            batches.append([])
            weight = 0
        batches[-1].append(job)
        weight += max(job.weight, 1)
    more = [f" and {len(batch) - 1} more" if len(batch) > 1 else "" for batch in batches]
    return [Batch(batch[0].label + more[i], [job.job for job in batch]) for i, batch in enumerate(batches)]


@dataclass(frozen=True)
class Runner:
    """Runs the steps of a build, a verification or an export.

    Args:
        num_workers: the number of batches that run at a time.
        one: runs a step without jobs once, in this process: (name, step) -> its result.
        run: runs the batches of a step: (name, step, batches) -> the results of each batch, in order; raises the first
            failure, after which no other batch begins.
        preload: begins to call a function in the process that starts the workers, for what it loads; returns at once.
    """

    num_workers: int
    one: Callable[[str, Callable[[], Any]], Any]
    run: Callable[[str, Step, list[Batch]], list[list[Any]]]
    preload: Callable[[Callable[[], object]], None] = lambda _: None

    def each(
        self, name: str, step: Step, jobs: Sequence[Job], task_weight: int = 1, max_tasks: int = MAX_TASKS
    ) -> list[Any]:
        """Run a step for each job; return the results in order. The batches change no byte of a version.

        Args:
            name: of the step, for progress and task runs.
            step: the function that a worker calls for each job.
            jobs: in order.
            task_weight: how much a batch does; less so that each worker gets several, more if there would be too many.
            max_tasks: the largest number of batches, unless a worker would be idle: see TASKS_PER_WORKER.
        """
        batches = batches_of(jobs, self.num_workers, task_weight, max_tasks)
        return list(chain.from_iterable(self.run(name, step, batches)))

    def examine(self, step: Step, items: Sequence[Any]) -> list[Any]:
        """Call a function that reads a file from outside with each of some items; return the results in order."""
        return self.each("examine", step, [Job("a file", item) for item in items])


@contextmanager
def open_workers(num_workers: int) -> Iterator[Runner]:
    """Yield a Runner of this process and its children, which end with the block.

    Args:
        num_workers: worker processes; with 0 this process does all the work.
    """
    with WorkerPool(num_workers) as pool, ThreadPoolExecutor(max(1, num_workers)) as threads:

        def run(name: str, step: Step, batches: list[Batch]) -> list[list[Any]]:
            calls = [partial(retrying, name, partial(pool.call, step, batch.jobs)) for batch in batches]
            if not num_workers:
                return [call() for call in calls]
            futures = [threads.submit(call) for call in calls]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                for future in futures:
                    future.cancel()
                pool.close()
                raise
            return [future.result() for future in futures]

        yield Runner(num_workers, retrying, run, pool.preload)


def retrying(name: str, step: Callable[[], Any]) -> Any:
    """Run a step; retry a transient failure after each of RETRY_SECONDS, and report each reason once."""
    last = ""
    for num_attempts, seconds in enumerate(RETRY_SECONDS, 1):
        try:
            return step()
        except Exception as error:
            if not should_retry(error, num_attempts):
                raise
            reason = reason_of(error)
            shown = "failed again in the same way" if reason == last else reason
            progress.report(progress.Message(f"{name}: {shown}; retrying in {seconds:g} s"))
            last = reason
            time.sleep(seconds)
    return step()
