"""Where the tasks of a step run: processes of this machine, or a Dask or Ray cluster.

All three run the same steps with the same jobs, several jobs to a Prefect task. Threads of the flow use processes
(tasks/running/workers.py). On a cluster the task itself runs there, through Prefect's own runners; it must reach the
store and Prefect's server. tasks/running/steps.py says which errors are retried.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from prefect import get_run_logger, task
from prefect._internal.concurrency import services  # registers Prefect's own reset, which must run before ours
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.futures import PrefectConcurrentFuture, PrefectFuture
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner
from prefect.tasks import Task

from tokenloom.errors import SpecError, TokenloomError, WorkerLost, message_of
from tokenloom.flows.blocks import environment_of, using_credentials
from tokenloom.flows.build_steps import REPORT_STEP
from tokenloom.spec.blocks import Credentials, DaskRunner, ProcessRunner, RayRunner
from tokenloom.tasks.running import progress
from tokenloom.tasks.running.progress import Meter, step_label
from tokenloom.tasks.running.steps import RETRY_SECONDS, Batch, Runner, Step, should_retry
from tokenloom.tasks.running.workers import WorkerPool, chosen_num_workers
from tokenloom.wording import clock


def _mark_services_as_ended() -> None:
    """Let forks of a process that ran a flow exit cleanly, such as the workers of torch's DataLoader.

    When the interpreter exits, Prefect stops its services for logs and events. In a fork, which has none of their
    threads, it resets them without marking them as ended; stopping them then raises AssertionError.
    """
    for service in list(services._active_services):
        service._done_event = asyncio.Event()
        service._done_event.set()


os.register_at_fork(after_in_child=_mark_services_as_ended)


_DEATHS = ("KilledWorker", "WorkerCrashedError", "NodeDiedError", "OutOfMemoryError")  # errors of Dask and Ray


def _retry_condition(task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    error = state.result(raise_on_failure=False)
    return isinstance(error, BaseException) and should_retry(error, run.run_count)


@task(
    cache_policy=NO_CACHE,
    retries=len(RETRY_SECONDS),
    retry_delay_seconds=list(RETRY_SECONDS),
    retry_condition_fn=_retry_condition,
)
def _run(label: str, call: Callable[[], Any]) -> Any:
    """Run a step; `label` is for the task run's name, and `call` is a partial, which Prefect does not inspect."""
    return call()


def run_one(name: str, step: Callable[[], Any]) -> Any:
    """Run a step in this process, as one task run."""
    label = step_label(name)
    return _run.with_options(name=label, task_run_name=label)(label, partial(step))


@contextmanager
def open_runner(
    spec: ProcessRunner | DaskRunner | RayRunner,
    credentials: Sequence[Credentials],
) -> Iterator[Runner]:
    """Yield a Runner that makes task runs, and ends with the block; the log of the run has a line for each step.

    Args:
        spec: where the tasks run.
        credentials: for the stores and sources.

    Raises SpecError if the runner's package is not installed.
    """
    opened = _open_processes(spec, credentials) if isinstance(spec, ProcessRunner) else _open_cluster(spec, credentials)
    with opened as runner, _logging_steps():
        yield runner


@contextmanager
def _open_processes(spec: ProcessRunner, credentials: Sequence[Credentials]) -> Iterator[Runner]:
    num_workers = chosen_num_workers(spec.workers)
    threads: TaskRunner[Any] = ThreadPoolTaskRunner(max_workers=max(1, num_workers))
    environment = environment_of(credentials) if credentials else None
    with WorkerPool(num_workers, environment) as pool, threads:

        def run(name: str, step: Step, batches: list[Batch]) -> list[list[Any]]:
            try:
                return _submit_all(threads, num_workers, name, partial(pool.call, step), batches)
            except BaseException:
                pool.close()
                raise

        yield Runner(num_workers, run_one, run, pool.preload)


@contextmanager
def _open_cluster(spec: DaskRunner | RayRunner, credentials: Sequence[Credentials]) -> Iterator[Runner]:
    tasks, count_workers = _dask(spec) if isinstance(spec, DaskRunner) else _ray(spec)
    with ExitStack() as stack:
        try:
            stack.enter_context(tasks)
            num_found = count_workers()
        except OSError as error:
            raise TokenloomError(
                f"runner.address: no cluster at {spec.address}: {message_of(error)}; check that it runs there"
            ) from error
        num_workers = spec.workers or max(1, num_found)

        def run(name: str, step: Step, batches: list[Batch]) -> list[list[Any]]:
            results = _submit_all(tasks, num_workers, name, partial(_run_on_cluster, list(credentials), step), batches)
            return [progress.replayed(result) for result in results]

        yield Runner(num_workers, run_one, run)  # the cluster ends with the block


def _dask(spec: DaskRunner) -> tuple[TaskRunner[Any], Callable[[], int]]:
    try:
        from prefect_dask.task_runners import DaskTaskRunner
    except ImportError as error:
        raise SpecError("runner: kind dask needs prefect-dask: pip install 'tokenloom[dask]'") from error
    local = {"n_workers": chosen_num_workers(spec.workers), "threads_per_worker": 1, "dashboard_address": None}
    tasks = DaskTaskRunner(address=spec.address) if spec.address else DaskTaskRunner(cluster_kwargs=local)
    return tasks, lambda: sum(tasks.client.nthreads().values())  # type: ignore[no-untyped-call]


def _ray(spec: RayRunner) -> tuple[TaskRunner[Any], Callable[[], int]]:
    try:
        import ray
        from prefect_ray import RayTaskRunner
    except ImportError as error:
        raise SpecError("runner: kind ray needs prefect-ray: pip install 'tokenloom[ray]'") from error
    local = {"num_cpus": chosen_num_workers(spec.workers), "include_dashboard": False}
    tasks = RayTaskRunner(address=spec.address, init_kwargs={} if spec.address else local)
    return tasks, lambda: int(ray.cluster_resources().get("CPU", 1))


def _run_on_cluster(
    credentials: list[Credentials], step: Step, jobs: list[Any]
) -> tuple[list[Any], list[progress.Event]]:
    """Run a step for the jobs of a task in a worker of a cluster; return the results and the events to replay."""
    with using_credentials(credentials):
        return progress.recorded(lambda: [step(job) for job in jobs])


def _submit_all(
    runner: TaskRunner[Any], num_workers: int, name: str, run: Callable[[list[Any]], Any], batches: list[Batch]
) -> list[Any]:
    """Submit a task run for each batch, two for each worker at a time; return the results of `run` in order.

    Thus a worker never waits for the next. Prefect knows a task run once it has a worker. After a failure no thread of
    this process begins another; a cluster may, until it is left.
    """
    if name == REPORT_STEP:  # shown in no task run; see there
        return [run(batch.jobs) for batch in batches]
    shown = step_label(name)
    named = _run.with_options(name=shown, task_run_name=shown + " {label}")
    num_slots = 2 * max(1, num_workers)
    slots, futures, failed = threading.Semaphore(num_slots), list[PrefectFuture[Any]](), list[int]()

    def done(position: int, future: PrefectFuture[Any]) -> None:
        if not failed and not _is_completed(future):
            failed.append(position)
            for queued in futures[position:]:
                if isinstance(queued, PrefectConcurrentFuture):
                    queued.wrapped_future.cancel()
        slots.release()

    for position in range(len(batches) + num_slots):  # the last wait for all
        slots.acquire()
        if failed:
            _result_of(batches[failed[0]].label, futures[failed[0]])
            raise WorkerLost(f"only {len(futures)} of {len(batches)} tasks ran; run the same build again")
        if position < len(batches):
            call = partial(run, batches[position].jobs)
            futures.append(runner.submit(named, {"label": batches[position].label, "call": call}))
            futures[-1].add_done_callback(partial(done, position))
    return [_result_of(batch.label, future) for batch, future in zip(batches, futures, strict=True)]


def _is_completed(future: PrefectFuture[Any]) -> bool:
    """Return whether a task run that is done has completed; it has the final state, and the server may not yet."""
    try:
        future.wait()
    except BaseException:  # noqa: BLE001  (result() raises it again)
        return False
    return future.state.is_completed()


def _result_of(label: str, future: PrefectFuture[Any]) -> Any:
    """Return the result of a task; raise its failure, or WorkerLost if it killed the workers of a cluster."""
    try:
        return future.result()
    except Exception as error:
        if type(error).__name__ in _DEATHS:
            raise WorkerLost(
                f"{label}: it killed the cluster's workers repeatedly; give them more memory, or leave it out"
            ) from error
        raise


@contextmanager
def _logging_steps() -> Iterator[None]:
    """Log the steps of a run while the block runs; those of a failed one only if they ended before it."""
    logger, meter = get_run_logger(), Meter()

    def log(step: progress.Step | None) -> None:
        if step:
            details = f": {step.details()}" if step.details() else ""
            logger.info("%s", f"{step_label(step.name)} done in {clock(step.seconds)}{details}")

    def listen(event: progress.Event) -> None:
        log(meter.take(event))
        if isinstance(event, progress.Message):
            logger.warning("%s", event.text)

    with progress.listening(listen):
        yield
    log(meter.finish())
