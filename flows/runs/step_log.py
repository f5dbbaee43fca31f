"""The log of a run: a line for each step that has ended, and what the steps warn of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prefect import get_run_logger

from tokenloom.tasks.running import progress
from tokenloom.tasks.running.progress import Meter, Step, step_label
from tokenloom.wording import clock


@contextmanager
def logging_steps() -> Iterator[None]:
    """Log the steps of a run while the block runs; those of a failed one only if they ended before it."""
    logger, meter = get_run_logger(), Meter()

    def log(step: Step | None) -> None:
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
