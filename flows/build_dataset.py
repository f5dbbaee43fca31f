"""The Prefect flow `build-dataset`: raw text in, a published version of token shards out.

Prefect caches nothing: the store is the one truth, and a step that finds its valid result returns at once. A lost
worker process is an ordinary retry; bad input is not tried again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture
from prefect.states import Completed
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.tasks import Task
from pydantic import Field

from tokenloom.errors import SpecError, WorkerLost, WorkError
from tokenloom.flows import report
from tokenloom.flows.order import run_build
from tokenloom.spec import BuildSpec
from tokenloom.spec_base import is_absolute
from tokenloom.tasks import progress
from tokenloom.tasks.progress import Meter
from tokenloom.tasks.workers import MAX_WORKERS, WorkerPool, default_num_workers

_LOG_SECONDS = 5.0
_RETRY_SECONDS: list[float] = [1, 5]


NumWorkers = Annotated[int | None, Field(ge=0, le=MAX_WORKERS, title="Workers")]
_runner: ThreadPoolTaskRunner[Any] = ThreadPoolTaskRunner(max_workers=MAX_WORKERS)


@flow(name="build-dataset", task_runner=_runner)  # type: ignore[arg-type]
def build_dataset(spec: BuildSpec, workers: NumWorkers = None) -> dict[str, Any]:
    """Build a version of a dataset and publish it.

    Args:
        spec: What to build: sources, tokenizer, splits, store. Relative paths need TOKENLOOM_HOME.
        workers: Worker processes on this machine; left out: one a core. 0 works in the flow's own process.

    Returns:
        reference, version, published, splits: as `tokenloom build --json` prints them.
    """
    try:
        result = _build(_with_absolute_paths(spec), default_num_workers() if workers is None else workers)
    except Exception as error:
        report.tell_failed(spec.dataset, error)
        raise
    if not result["published"]:
        message = f"up to date: {result['reference']} is published already"
        return Completed(message=message, data=result)  # type: ignore[return-value]  # Prefect returns its data
    report.tell_published(spec.dataset, result)
    report.show_result(result)
    return result


def _build(spec: BuildSpec, num_workers: int) -> dict[str, Any]:
    with WorkerPool(num_workers) as pool, progress.listening(_log_listener()):

        def run_one(name: str, step: Callable[[], Any]) -> Any:
            @task(name=name, cache_policy=NO_CACHE)
            def run() -> Any:
                return step()

            return run()

        def run_each(name: str, step: Callable[[Any], Any], jobs: Sequence[tuple[str, Any]]) -> list[Any]:
            @task(
                name=name,
                task_run_name=name + " {label}",
                cache_policy=NO_CACHE,
                retries=len(_RETRY_SECONDS),
                retry_delay_seconds=_RETRY_SECONDS,
                retry_condition_fn=lambda task, run, state: _is_lost_worker(state) and not pool.closed,
            )
            def run(label: str, position: int) -> Any:
                return pool.call(step, jobs[position][1])

            try:
                return _submit_all(run, [label for label, _ in jobs], num_workers)
            except WorkError:
                raise  # the build mends it with the same workers
            except BaseException:
                pool.close(now=True)
                raise

        return run_build(spec, num_workers, run_one, run_each).to_json()


def _submit_all(mapped: Task[[str, int], Any], labels: list[str], num_workers: int) -> list[Any]:
    """Submit a task for each label, `num_workers` at a time; return the results in order.

    So a task run that is shown as running has a worker, and after a failure no further one starts.
    """
    slots = threading.Semaphore(max(1, num_workers))
    failed = threading.Event()

    def done(future: PrefectFuture[Any]) -> None:
        try:
            future.wait()  # takes the final state from the task run itself; the server may not know it yet
            if not future.state.is_completed():
                failed.set()
        finally:
            slots.release()

    futures = []
    for position, label in enumerate(labels):
        slots.acquire()
        if failed.is_set():
            break
        future = mapped.submit(label, position)
        future.add_done_callback(done)
        futures.append(future)
    results = [future.result() for future in futures]  # raises the first failure
    if len(results) != len(labels):
        raise WorkerLost(f"only {len(results)} of {len(labels)} tasks ran; run the same build again")
    return results


def _is_lost_worker(state: State[Any]) -> bool:
    return isinstance(state.result(raise_on_failure=False), WorkerLost)


def _with_absolute_paths(spec: BuildSpec) -> BuildSpec:
    """Make relative paths absolute from TOKENLOOM_HOME; a worker's own folder means nothing to whoever wrote them."""
    relative = [(key, path) for key, path in spec.paths() if not is_absolute(path)]
    home = os.environ.get("TOKENLOOM_HOME")
    if relative and not home:
        key, path = relative[0]
        raise SpecError(
            f"{key}: {path!r} is relative, which says nothing in a deployment; write an absolute path or a URL, or set "
            "TOKENLOOM_HOME where the worker runs"
        )
    return spec.resolve(Path(home)) if home else spec


def _log_listener() -> progress.Listener:
    """Return a listener that writes steps, messages, and progress at most every few seconds into the run's log."""
    logger = get_run_logger()
    meter, lock = Meter(), threading.Lock()
    last = time.monotonic()

    def listen(event: progress.Event) -> None:
        nonlocal last
        with lock:
            if isinstance(event, progress.Planned):
                report.name_run(event.dataset, event.version)
            elif isinstance(event, progress.Message):
                logger.warning(event.text)
            elif isinstance(event, progress.StepStarted):
                meter.begin(event)
                logger.info("%s", meter.text())
            elif isinstance(event, progress.Advanced):
                meter.add(event)
                if time.monotonic() - last >= _LOG_SECONDS:
                    last = time.monotonic()
                    logger.info("%s", meter.text())

    return listen
