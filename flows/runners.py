"""Where the tasks of a step run: processes of this machine, or a Dask or Ray cluster.

All three run the same steps with the same jobs, several jobs to a Prefect task. Processes are leased by threads of the
flow (tasks/workers.py). On a cluster the task itself runs there, through Prefect's own runners; it needs a way to the
store and to Prefect's server. A lost worker or a network error is tried again, bad input is not.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.futures import PrefectFuture
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner
from prefect.tasks import Task

from tokenloom.errors import SpecError, WorkerLost, WorkError
from tokenloom.flows.blocks import environment_of, use_credentials
from tokenloom.spec_runner import Credentials, DaskRunner, ProcessRunner, RayRunner
from tokenloom.tasks import progress
from tokenloom.tasks.retries import RETRY_SECONDS, is_worth_another_try
from tokenloom.tasks.workers import WorkerPool, default_num_workers


def _retry_condition(task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    error = state.result(raise_on_failure=False)
    return isinstance(error, BaseException) and is_worth_another_try(error, run.run_count)


@task(
    cache_policy=NO_CACHE,
    retries=len(RETRY_SECONDS),
    retry_delay_seconds=list(RETRY_SECONDS),
    retry_condition_fn=_retry_condition,
)
def _run(label: str, call: Callable[[], Any]) -> Any:
    """Run a step; `label` is for the name of the task run."""
    return call()


def run_one(name: str, step: Callable[[], Any]) -> Any:
    """Run a step alone in this process, as a task run."""
    return _run.with_options(name=name, task_run_name=name)(name, _Opaque(step))


class _Opaque:
    """A call that Prefect does not look into: it searches the arguments of a task for results of others."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call

    def __call__(self) -> Any:
        return self._call()


@dataclass(frozen=True)
class Runner:
    """Runs a step for many jobs.

    `num_workers` is how many jobs run at a time; `wrap(step, job)` makes the call that a task run makes, and
    `unwrap` its result; `stop` ends calls at work when the build fails.
    """

    tasks: TaskRunner[Any]
    num_workers: int
    wrap: Callable[[Callable[[Any], Any], Any], Callable[[], Any]]
    unwrap: Callable[[Any], Any]
    stop: Callable[[], None]

    def run_each(self, name: str, step: Callable[[Any], Any], jobs: Sequence[tuple[str, Any]]) -> list[Any]:
        """Run `step` for each (label, job) as a task run; return the results in order, raise the first failure."""
        named = _run.with_options(name=name, task_run_name=name + " {label}")
        calls = [(label, self.wrap(step, job)) for label, job in jobs]
        try:
            return [self.unwrap(result) for result in self._submit_all(named, calls)]
        except WorkError:
            raise  # the build mends it with the same workers
        except BaseException:
            self.stop()
            raise

    def _submit_all(self, named: Task[..., Any], calls: Sequence[tuple[str, Callable[[], Any]]]) -> list[Any]:
        """Submit a task for each call, `num_workers` at a time; return the results in order.

        So a task run that is shown as running has a worker, and after a failure no further one starts.
        """
        slots = threading.Semaphore(max(1, self.num_workers))
        failed = threading.Event()

        def done(future: PrefectFuture[Any]) -> None:
            try:
                future.wait()  # takes the final state from the task run itself; the server may not know it yet
                if not future.state.is_completed():
                    failed.set()
            finally:
                slots.release()

        futures = []
        for label, call in calls:
            slots.acquire()
            if failed.is_set():
                break
            future = self.tasks.submit(named, {"label": label, "call": call})
            future.add_done_callback(done)
            futures.append(future)
        results = [future.result() for future in futures]  # raises the first failure
        if len(results) != len(calls):
            raise WorkerLost(f"only {len(results)} of {len(calls)} tasks ran; run the same build again")
        return results


@contextmanager
def open_runner(spec: ProcessRunner | DaskRunner | RayRunner, credentials: Sequence[Credentials]) -> Iterator[Runner]:
    """Yield the runner that a spec names, ready for work; it ends with the block.

    Raises SpecError if its package is not installed.
    """
    if isinstance(spec, ProcessRunner):
        with _open_processes(spec, credentials) as runner:
            yield runner
    else:
        with _open_cluster(spec, credentials) as runner:
            yield runner


@contextmanager
def _open_processes(spec: ProcessRunner, credentials: Sequence[Credentials]) -> Iterator[Runner]:
    num_workers = default_num_workers() if spec.workers is None else spec.workers
    threads: TaskRunner[Any] = ThreadPoolTaskRunner(max_workers=max(1, num_workers))
    with WorkerPool(num_workers, environment_of([one.protocol for one in credentials])) as pool, threads:
        yield Runner(
            tasks=threads,
            num_workers=num_workers,
            wrap=lambda step, job: _Opaque(lambda: pool.call(step, job)),
            unwrap=lambda result: result,
            stop=lambda: pool.close(now=True),
        )


@contextmanager
def _open_cluster(spec: DaskRunner | RayRunner, credentials: Sequence[Credentials]) -> Iterator[Runner]:
    tasks, count = _dask(spec) if isinstance(spec, DaskRunner) else _ray(spec)
    with tasks:
        yield Runner(
            tasks=tasks,
            num_workers=count(),
            wrap=lambda step, job: ClusterCall(step, job, credentials),
            unwrap=_tell_what_was_seen,
            stop=lambda: None,  # the cluster drops what waits when its client goes
        )


def _dask(spec: DaskRunner) -> tuple[TaskRunner[Any], Callable[[], int]]:
    try:
        from prefect_dask.task_runners import DaskTaskRunner
    except ImportError as error:
        raise SpecError("runner: kind dask needs prefect-dask: pip install 'tokenloom[dask]'") from error
    num_workers = spec.workers or default_num_workers()
    local = {"n_workers": num_workers, "threads_per_worker": 1, "dashboard_address": None}
    tasks = DaskTaskRunner(address=spec.address) if spec.address else DaskTaskRunner(cluster_kwargs=local)
    return tasks, lambda: spec.workers or max(1, sum(tasks.client.nthreads().values()))  # type: ignore[no-untyped-call]


def _ray(spec: RayRunner) -> tuple[TaskRunner[Any], Callable[[], int]]:
    try:
        import ray
        from prefect_ray import RayTaskRunner
    except ImportError as error:
        raise SpecError("runner: kind ray needs prefect-ray: pip install 'tokenloom[ray]'") from error
    local = {"num_cpus": spec.workers or default_num_workers(), "include_dashboard": False}
    tasks = RayTaskRunner(address=spec.address, init_kwargs={} if spec.address else local)
    return tasks, lambda: spec.workers or max(1, int(ray.cluster_resources().get("CPU", 1)))


class ClusterCall:
    """A step with its job, as it travels to a worker of a cluster: in one piece, which Prefect does not look into."""

    def __init__(self, step: Callable[[Any], Any], job: Any, credentials: Sequence[Credentials]) -> None:
        self._packed = pickle.dumps((step, job, list(credentials)))

    def __call__(self) -> tuple[Any, list[progress.Event]]:
        """Run it; return (result, what it told on the way)."""
        step, job, credentials = pickle.loads(self._packed)  # noqa: S301  (our own bytes)
        use_credentials(credentials)
        thread = threading.get_ident()  # a worker may run several tasks in threads
        seen: list[progress.Event] = []

        def listen(event: progress.Event) -> None:
            if threading.get_ident() == thread and not isinstance(event, progress.Working):
                seen.append(event)

        with progress.listening(listen):
            return step(job), seen


def _tell_what_was_seen(result: tuple[Any, list[progress.Event]]) -> Any:
    value, seen = result
    for event in seen:
        progress.report(event)
    return value
