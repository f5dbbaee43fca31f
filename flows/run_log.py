"""What a run shows while it works: log lines that move, and one Markdown artifact with the step and the whole build.

Steps report from many threads and must not wait, so one thread of its own writes every few seconds what is new.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
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

from tokenloom.flows import report
from tokenloom.flows.progress_page import progress_page, summary_line
from tokenloom.tasks.running import progress
from tokenloom.tasks.running.meter import Meter, step_label
from tokenloom.wording import clock

_SECONDS = 5.0


@contextmanager
def telling_progress() -> Iterator[None]:
    """Write what the steps report into the run's log and its progress artifact while the block runs."""
    logger, meter, lock = get_run_logger(), Meter(), threading.Lock()  # the lock is not held while a server is asked
    pages: list[tuple[UUID, str]] = []  # of the artifact: its id and its title
    show = partial(_show, logger, meter, lock, pages)

    def listen(event: progress.Event) -> None:
        with lock:
            meter.take(event)
            _log_ended(logger, meter)
        if isinstance(event, progress.Message):
            logger.warning("%s", event.text)
        elif isinstance(event, progress.Planned):
            with _going_on(logger):
                pages.extend(_begin(event, meter))

    stopped = threading.Event()
    thread = threading.Thread(
        target=copy_context().run,
        args=(_show_until, stopped, logger, meter, lock, show),
        name="progress",
        daemon=True,
    )
    ended = "stopped"
    with progress.listening(listen):
        thread.start()
        try:
            yield
            ended = "done"
        finally:
            stopped.set()
            thread.join(_SECONDS)
            with lock:
                if ended == "done":
                    meter.finish()
                _log_ended(logger, meter)
            show(ended)


def _show_until(
    stopped: threading.Event, logger: Any, meter: Meter, lock: threading.Lock, show: Callable[[], None]
) -> None:
    """Log how far the work is and show it, every few seconds if it has moved."""
    before = None
    while not stopped.wait(_SECONDS):
        with lock:
            has_moved = meter.position != before and bool(meter.share())
            before = meter.position
            if has_moved:
                logger.info("%s", meter.text())
        if has_moved:
            show()


def _show(logger: Any, meter: Meter, lock: threading.Lock, pages: list[tuple[UUID, str]], ended: str = "") -> None:
    """Write how far the work is into the artifact; see progress_page for `ended`."""
    for artifact, title in pages:
        with lock:
            update = ArtifactUpdate(data=progress_page(title, meter, ended), description=summary_line(meter, ended))
        with _going_on(logger), get_client(sync_client=True) as client:
            client.update_artifact(artifact, update)


def _log_ended(logger: Any, meter: Meter) -> None:
    """Log a line for each step that has ended since the last call."""
    for step in meter.take_ended():
        details = f": {', '.join(step.details)}" if step.details else ""
        logger.info("%s", f"{step_label(step.step)} done in {clock(step.seconds)}{details}")


@contextmanager
def _going_on(logger: Any) -> Iterator[None]:
    """Log an error of Prefect's server in the block, and continue: a build need not be watched."""
    try:
        yield
    except (httpx.HTTPError, PrefectException) as error:
        logger.warning("the run's name or progress can't be shown: %s", error)


def _begin(event: progress.Planned, meter: Meter) -> list[tuple[UUID, str]]:
    """Name the run; return the artifact of its progress and its title, if it has something to do."""
    report.name_run(event.dataset, event.version)
    if event.published:
        return []
    title = f"{event.dataset} {event.version}"
    key = f"{report.artifact_key(event.dataset)}-progress"
    if earlier := _artifact_of_this_run(key):
        return [(earlier, title)]
    artifact = create_markdown_artifact(progress_page(title, meter), key=key, description=summary_line(meter))
    assert isinstance(artifact, UUID)  # not awaitable outside of an event loop
    return [(artifact, title)]


def _artifact_of_this_run(key: str) -> UUID | None:
    """Return the artifact that an earlier try of this run left: a run has one, however often it is retried."""
    mine = ArtifactFilterFlowRunId(any_=[UUID(flow_run.get_id())])
    wanted = ArtifactFilter(key=ArtifactFilterKey(any_=[key]), flow_run_id=mine)
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(artifact_filter=wanted)
    return found[0].id if found else None
