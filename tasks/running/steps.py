"""The interface through which flows run their steps, and what all its implementations share.

`flows/direct.py` runs steps in threads of this process, `flows/runners.py` as task runs of Prefect: in worker
processes or on a cluster. They differ in how they call a step for one job and in how they submit such calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tokenloom.errors import WorkError

# Runs a step once, in this process: (name, step) -> its result.
RunOne = Callable[[str, Callable[[], Any]], Any]

# Runs calls, several at once: (name of the step, [(label, call)]) -> results in order.
Submit = Callable[[str, Sequence[tuple[str, Callable[[], Any]]]], list[Any]]


def _do_nothing() -> None:
    pass


@dataclass(frozen=True)
class RunEach:
    """Runs a step for each of many jobs, several at once in workers.

    Args:
        call: runs a step for one job, where the work happens: (step, job) -> its result.
        submit: runs such calls; raises the first failure.
        stop: ends the calls in progress after a failure. A WorkError does not end them, because the build repairs the
            damaged file with the same workers.
        release: lets the workers end, because no step follows; does not wait for them.
    """

    call: Callable[[Callable[[Any], Any], Any], Any]
    submit: Submit
    stop: Callable[[], None] = _do_nothing
    release: Callable[[], None] = _do_nothing

    def __call__(self, name: str, step: Callable[[Any], Any], jobs: Sequence[tuple[str, Any]]) -> list[Any]:
        """Run the step `name` for each (label, job); return the results in order."""
        try:
            return self.submit(name, [(label, partial(self.call, step, job)) for label, job in jobs])
        except WorkError:
            raise
        except BaseException:
            self.stop()
            raise
