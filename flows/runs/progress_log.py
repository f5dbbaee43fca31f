"""Show the progress of a run: log lines, and one Markdown artifact with the current step and the whole build.

Steps report from many threads and must not wait, so a separate thread writes the progress every few seconds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import Any
from uuid import UUID

import httpx
from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, ArtifactFilterKey
from prefect.exceptions import PrefectException
from prefect.runtime import flow_run

from tokenloom.flows.runs import report
from tokenloom.flows.runs.progress_page import progress_page, summary_line
from tokenloom.tasks.running import progress
from tokenloom.tasks.running.meter import Meter
from tokenloom.tasks.running.meter_reading import Reading, StepReading, step_label
from tokenloom.wording import clock

_SECONDS = 5.0


@contextmanager
def logging_progress() -> Iterator[None]:
    """Write the progress of the steps to the run's log and its progress artifact while the block runs."""
    logger, meter = get_run_logger(), Meter()
    pages: list[tuple[UUID, str]] = []  # the artifact: its id and its title
    show = partial(_show, logger, pages)

    def listen(event: progress.Event) -> None:
        _log_finished(logger, meter.take(event))
        if isinstance(event, progress.Message):
            logger.warning("%s", event.text)
        elif isinstance(event, progress.Planned):
            with _tolerating_server_errors(logger):
                pages.extend(_begin(event, meter.read()))

    ended = "stopped"
    with progress.listening(listen):
        try:
            with _showing_periodically(logger, meter, show):
                yield
            ended = "done"
        finally:
            if ended == "done":
                _log_finished(logger, meter.finish())
            show(meter.read(), ended)


@contextmanager
def _showing_periodically(logger: Any, meter: Meter, show: Callable[[Reading], None]) -> Iterator[None]:
    """Log and show the progress from a thread, every few seconds if there is any."""
    stopped = threading.Event()

    def work() -> None:
        before = None
        while not stopped.wait(_SECONDS):
            reading = meter.read()
            position = reading.step and (reading.step.name, reading.step.position)
            if position != before and reading.share:
                logger.info("%s", reading.text())
                show(reading)
            before = position

    thread = threading.Thread(target=copy_context().run, args=(work,), name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(_SECONDS)


def _show(logger: Any, pages: list[tuple[UUID, str]], reading: Reading, ended: str = "") -> None:
    """Write the progress to the artifact; see progress_page for `ended`."""
    for artifact, title in pages:
        update = ArtifactUpdate(data=progress_page(title, reading, ended), description=summary_line(reading, ended))
        with _tolerating_server_errors(logger), get_client(sync_client=True) as client:
            client.update_artifact(artifact, update)


def _log_finished(logger: Any, steps: Iterable[StepReading]) -> None:
    """Log a line for each step that has ended."""
    for step in steps:
        details = f": {', '.join(step.details)}" if step.details else ""
        logger.info("%s", f"{step_label(step.name)} done in {clock(step.seconds)}{details}")


@contextmanager
def _tolerating_server_errors(logger: Any) -> Iterator[None]:
    """Log an error of Prefect's server in the block, and continue: a build does not depend on being watched."""
    try:
        yield
    except (httpx.HTTPError, PrefectException) as error:
        logger.warning("the run's name or progress can't be shown: %s", error)


def _begin(event: progress.Planned, reading: Reading) -> list[tuple[UUID, str]]:
    """Name the run; return the artifact of its progress and its title, if there is something to do."""
    report.name_run(event.dataset, event.version)
    if event.published:
        return []
    title = f"{event.dataset} {event.version}"
    key = f"{report.artifact_key(event.dataset)}-progress"
    if earlier := _artifact_of_this_run(key):
        return [(earlier, title)]
    artifact = create_markdown_artifact(progress_page(title, reading), key=key, description=summary_line(reading))
    assert isinstance(artifact, UUID)  # not awaitable outside of an event loop
    return [(artifact, title)]


def _artifact_of_this_run(key: str) -> UUID | None:
    """Return the artifact of an earlier attempt of this run: a run has one, however often it is retried."""
    mine = ArtifactFilterFlowRunId(any_=[UUID(flow_run.get_id())])
    wanted = ArtifactFilter(key=ArtifactFilterKey(any_=[key]), flow_run_id=mine)
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(artifact_filter=wanted)
    return found[0].id if found else None
