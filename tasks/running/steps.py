"""The interface through which flows run their steps, and what all its implementations share.

`flows/direct.py` runs steps in threads of this process, `flows/runners.py` as task runs of Prefect: in worker
processes or on a cluster. They differ in how they call a step for one job and in how they submit such calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

# Runs a step once, in this process: (name, step) -> its result.
RunOne = Callable[[str, Callable[[], Any]], Any]


class Call(NamedTuple):
    """A call of the step `name` for one job; `label` says for which."""

    name: str
    label: str
    run: Callable[[], Any]


# Runs calls, several at once, and returns their results in order.
Submit = Callable[[Sequence[Call]], list[Any]]

# A step for each of many jobs: (name, step, [(label, job)]).
StepJobs = tuple[str, Callable[[Any], Any], Sequence[tuple[str, Any]]]


def _do_nothing() -> None:
    pass


@dataclass(frozen=True)
class RunEach:
    """Runs a step for each of many jobs, several at once in workers.

    Args:
        call: runs a step for one job, where the work happens: (step, job) -> its result.
        submit: runs such calls; raises the first failure.
        stop: ends the calls in progress after a failure.
    """

    call: Callable[[Callable[[Any], Any], Any], Any]
    submit: Submit
    stop: Callable[[], None] = _do_nothing

    def __call__(self, name: str, step: Callable[[Any], Any], jobs: Sequence[tuple[str, Any]]) -> list[Any]:
        """Run the step `name` for each (label, job); return the results in order."""
        return self.run_together((name, step, jobs))[0]

    def run_together(self, *steps: StepJobs) -> list[list[Any]]:
        """Run independent steps, the calls of those named first before the others; return the results of each step."""
        calls = [Call(name, label, partial(self.call, step, job)) for name, step, jobs in steps for label, job in jobs]
        try:
            results = iter(self.submit(calls))
        except BaseException:
            self.stop()
            raise
        return [list(islice(results, len(jobs))) for _, _, jobs in steps]
