"""Who retries what, how often, and why these levels do not multiply.

    level     what it repeats                      for which errors                      how often
    request   one request to a remote store        transient                             5 attempts within two minutes
              (storage/stores)
    task      one call of a step, here             transient                             3 retries, after 1, 5 and 20 s
              (flows/direct.py, runners.py)
    run       a run of a deployment                all but those of the spec, a gate     1 retry
              (flows/build_dataset.py)             or an input

Only tasks repeat what requests gave up, on purpose: a store that is unreachable for more than two minutes does not end
a build, one that stays unreachable does after about eight. If nothing that looks like the store has answered this
process before, its endpoint is likely wrong, and a task does not repeat the request's attempts. Inputs at URLs that are
not those of object stores have no level below the task. All other errors, such as bad input, a lost worker or a damaged
work file, are raised at once.
"""

from __future__ import annotations

from tokenloom.errors import WorkerLost, WorkError
from tokenloom.storage.stores.remote_errors import is_transient
from tokenloom.storage.stores.remote_retries import never_answered

RETRY_SECONDS: tuple[float, ...] = (1, 5, 20)


def should_retry(error: BaseException, num_attempts: int) -> bool:
    """Return whether to call a step again that has failed `num_attempts` times, the last time with `error`."""
    if isinstance(error, WorkerLost | WorkError):  # the run ends, whatever caused it
        return False
    return num_attempts <= len(RETRY_SECONDS) and is_transient(error) and not never_answered(error)
