"""Progress on stderr: a line for each finished step and live bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tokenloom.console import print_status
from tokenloom.tasks.running import progress
from tokenloom.tasks.running.meter import Meter
from tokenloom.tasks.running.meter_reading import step_label
from tokenloom.wording import clock

_PLAIN_SECONDS = 5.0


@contextmanager
def showing_progress() -> Iterator[None]:
    """Show what the steps report while the block runs."""
    if sys.stderr.isatty():
        from tokenloom.cli.live_display import LiveDisplay

        with LiveDisplay() as display, progress.listening(display.take):
            yield
    else:
        with progress.listening(_PlainLines().take):
            yield


class _PlainLines:
    """Prints each message, and every five seconds where the work is."""

    def __init__(self) -> None:
        self._meter, self._lock, self._last = Meter(), threading.Lock(), time.monotonic()

    def take(self, event: progress.Event) -> None:
        """Take an event; any thread may call."""
        ended = self._meter.take(event)
        with self._lock:  # lines of different threads must not mix
            if isinstance(event, progress.Message):
                print_status(event.text)
            elif time.monotonic() - self._last >= _PLAIN_SECONDS:
                self._last = time.monotonic()
                # After a wait for one step, such as the start of a server, the next one must not seem to have taken it.
                took = [f"{step_label(step.name)} took {clock(step.seconds)}" for step in ended]
                print_status(took[0] if took else self._meter.read().text())
