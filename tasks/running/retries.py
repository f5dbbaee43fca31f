"""Who retries what, how often, and why these levels do not multiply.

    level     what it repeats                      for which errors                      how often
    request   one request to a remote store        transient                             5 attempts within two minutes
              (storage/stores)
    task      one call of a step, here             transient; a lost worker process      3 retries, after 1, 5 and 20 s;
              (flows/direct.py, runners.py)                                              2 of lost workers
    repair    the steps from tokenize on           WorkError: a file in work/ is         2 repairs of a spill
              (flows/build_steps.py)               missing or damaged

An error belongs to one level. A WorkError is never transient, so no task retries what a repair must write again; and
every other error ends the repairs, so they do not repeat a task's retries. Only tasks repeat what requests gave up,
on purpose: a store that is unreachable for more than two minutes does not end a build, one that stays unreachable
does after about eight. If nothing that looks like the store has answered this process before, its endpoint is likely
wrong, and a task does not repeat the request's attempts. Inputs at URLs that are not those of object stores have no
level below the task. All other errors, such as bad input, are raised at once.
"""

from __future__ import annotations

from tokenloom.errors import WorkerLost, WorkError
from tokenloom.storage.stores.remote_errors import is_transient
from tokenloom.storage.stores.remote_retries import never_answered

RETRY_SECONDS: tuple[float, ...] = (1, 5, 20)
MAX_REPAIRS = 2
_MAX_LOST_WORKERS = 2  # retries of one call: what kills a third worker is the call itself


def should_retry(error: BaseException, num_attempts: int) -> bool:
    """Return whether to call a step again that has failed `num_attempts` times, the last time with `error`."""
    if isinstance(error, WorkError):
        return False
    max_retries = _MAX_LOST_WORKERS if isinstance(error, WorkerLost) else len(RETRY_SECONDS)
    return num_attempts <= max_retries and is_transient(error) and not never_answered(error)
