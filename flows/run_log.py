"""What a run of build-dataset tells while it works: log lines that move, and a progress artifact.

Steps report from many threads and must not wait, so one thread of its own writes every few seconds what is new.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
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
def telling_progress() -> Iterator[Callable[[], None]]:
    """Write what the steps report into the run's log and its progress artifact; yield what shows that all is done."""
    log = _RunLog(get_run_logger())
    thread = threading.Thread(target=copy_context().run, args=(log.write_every, _SECONDS), name="progress", daemon=True)
    with progress.listening(log.listen):
        thread.start()
        try:
            yield log.finish
        finally:
            log.stop()
            thread.join()


class _RunLog:
    def __init__(self, logger: Any) -> None:
        self._logger = logger
        self._meter, self._lock = Meter(), threading.Lock()
        self._has_moved = False
        self._artifact: UUID | None = None
        self._stopped = threading.Event()

    def listen(self, event: progress.Event) -> None:
        """Take what a step reports; steps and messages are told at once."""
        with self._lock:
            if isinstance(event, progress.Planned):
                self._begin(event)
            elif isinstance(event, progress.Message):
                self._logger.warning(event.text)
            elif isinstance(event, progress.StepStarted):
                self._meter.begin(event)
                self._logger.info("%s", self._meter.text())
                self._has_moved = True
            elif isinstance(event, progress.Advanced):
                self._meter.add(event)
                self._has_moved = True

    def _begin(self, event: progress.Planned) -> None:
        report.name_run(event.dataset, event.version)
        if not event.published:
            key = f"{report.artifact_key(event.dataset)}-progress"
            artifact = create_progress_artifact(0.0, key, f"{event.dataset} {event.version}")
            assert isinstance(artifact, UUID)  # not awaitable outside of an event loop
            self._artifact = artifact

    def write_every(self, seconds: float) -> None:
        """Write what is new, every so many seconds, until stopped."""
        while not self._stopped.wait(seconds):
            with self._lock:
                text, percent, has_moved = self._meter.text(), self._percent(), self._has_moved
                self._has_moved = False
            if has_moved:
                self._logger.info("%s", text)
                self._show(percent, text)

    def _percent(self) -> float:
        start, end = _RANGES.get(self._meter.step, (0, 0))
        return start + (end - start) * self._meter.share()

    def _show(self, percent: float, text: str) -> None:
        if self._artifact is None:
            return
        try:
            update_progress_artifact(self._artifact, percent, text)
        except (httpx.HTTPError, PrefectException) as error:  # the build goes on without being watched
            self._logger.warning("the progress artifact can't be written: %s", error)

    def stop(self) -> None:
        """Let `write_every` end."""
        self._stopped.set()

    def finish(self) -> None:
        """Show that all is done."""
        self._show(100.0, "published")
