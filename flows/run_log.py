"""What a run of build-dataset tells while it works: log lines that move, and a progress artifact.

Steps report from many threads and must not wait, so one thread of its own writes every few seconds what is new.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any
from uuid import UUID

import httpx
from prefect import get_run_logger
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.exceptions import PrefectException

from tokenloom.flows import report
from tokenloom.tasks import progress
from tokenloom.tasks.progress import Meter

_SECONDS = 5.0
# From which percentage to which a step takes the whole build, about.
_RANGES = {
    "cut": (0, 2),
    "tokenize": (2, 65),
    "assign": (65, 66),
    "shuffle": (66, 90),
    "validate": (90, 98),
    "publish": (98, 100),
}


@contextmanager
def telling_progress() -> Iterator[None]:
    """Write what the steps report into the run's log and its progress artifact while the block runs."""
    logger = get_run_logger()
    meter, lock = Meter(), threading.Lock()
    artifacts: list[UUID] = []
    stopped = threading.Event()

    def listen(event: progress.Event) -> None:
        with lock:
            meter.take(event)
            if isinstance(event, progress.Planned):
                with _going_on(logger):
                    artifacts.extend(_begin(event))
            elif isinstance(event, progress.Message):
                logger.warning(event.text)
            elif isinstance(event, progress.StepStarted):
                logger.info("%s", meter.text())

    def show(percent: float, text: str) -> None:
        for artifact in artifacts:
            with _going_on(logger):
                update_progress_artifact(artifact, percent, text)

    def write() -> None:
        before = None
        while not stopped.wait(_SECONDS):
            with lock:
                now, percent, text = (meter.step, meter.done, meter.num_bytes), _percent(meter), meter.text()
            if now != before:
                logger.info("%s", text)
                show(percent, text)
            before = now

    thread = threading.Thread(target=copy_context().run, args=(write,), name="progress", daemon=True)
    with progress.listening(listen):
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join(_SECONDS)
    show(100.0, "done")


@contextmanager
def _going_on(logger: Any) -> Iterator[None]:
    """Tell an error of Prefect's server in the block, and go on: a build need not be watched."""
    try:
        yield
    except (httpx.HTTPError, PrefectException) as error:
        logger.warning("the run's name or progress can't be shown: %s", error)


def _begin(event: progress.Planned) -> list[UUID]:
    """Name the run; return the new artifact of its progress, if it has something to do."""
    report.name_run(event.dataset, event.version)
    if event.published:
        return []
    key = f"{report.artifact_key(event.dataset)}-progress"
    artifact = create_progress_artifact(0.0, key, f"{event.dataset} {event.version}")
    assert isinstance(artifact, UUID)  # not awaitable outside of an event loop
    return [artifact]


def _percent(meter: Meter) -> float:
    start, end = _RANGES.get(meter.step, (0, 0))
    return start + (end - start) * meter.share()
