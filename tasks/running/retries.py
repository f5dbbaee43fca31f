"""Which failures are tried again, and when: what can pass (the network, a busy server, a lost worker), nothing else."""

from __future__ import annotations

from tokenloom.errors import WorkerLost
from tokenloom.storage.stores.remote_errors import is_transient

RETRY_SECONDS: tuple[float, ...] = (1, 5, 20)
_MOST_LOST_WORKERS = 2  # of one job: what kills a third is the job's own


def is_worth_another_try(error: BaseException, num_tries: int) -> bool:
    """Return whether work that failed `num_tries` times may succeed at the next try."""
    most = _MOST_LOST_WORKERS if isinstance(error, WorkerLost) else len(RETRY_SECONDS)
    return num_tries <= most and is_transient(error)
