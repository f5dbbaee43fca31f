"""Steps run without Prefect, by threads of this process and a pool of workers: RunOne and RunEach of order.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from typing import Any

from tokenloom.errors import WorkError
from tokenloom.storage.stores.remote_errors import reason_of
from tokenloom.tasks.running import progress
from tokenloom.tasks.running.retries import RETRY_SECONDS, is_worth_another_try
from tokenloom.tasks.running.workers import WorkerPool


def run_each_directly(
    pool: WorkerPool, name: str, step: Callable[[Any], Any], jobs: Sequence[tuple[str, Any]]
) -> list[Any]:
    """Run a step for each (label, job) in the workers of `pool`; return the results in order."""
    calls = [partial(run_one_directly, name, partial(pool.call, step, job)) for _, job in jobs]
    if pool.num_workers == 0:
        return [call() for call in calls]
    with ThreadPoolExecutor(pool.num_workers) as threads:
        futures = [threads.submit(call) for call in calls]
        try:
            for future in as_completed(futures):
                future.result()
        except WorkError:  # the build mends it with the same workers
            threads.shutdown(cancel_futures=True)
            raise
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            pool.close(now=True)
            raise
        return [future.result() for future in futures]


def run_one_directly(name: str, step: Callable[[], Any]) -> Any:
    """Run a step, again after each of RETRY_SECONDS if that may help."""
    for num_tries, seconds in enumerate(RETRY_SECONDS, 1):
        try:
            return step()
        except Exception as error:
            if not is_worth_another_try(error, num_tries):
                raise
            progress.report(progress.Message(f"{name}: {reason_of(error)}; tried again in {seconds:g} s"))
            time.sleep(seconds)
    return step()
