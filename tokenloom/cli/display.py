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

_PLAIN_SECONDS = 5.0


@contextmanager
def showing_progress() -> Iterator[None]:
    """Show what the steps report while the block runs."""
    with _live() if sys.stderr.isatty() else _plain_lines():
        yield


@contextmanager
def _live() -> Iterator[None]:
    from tokenloom.cli.live_display import LiveDisplay

    with LiveDisplay() as display, progress.listening(display.take):
        yield


@contextmanager
def _plain_lines() -> Iterator[None]:
    meter, lock = Meter(), threading.Lock()
    last = time.monotonic()

    def listen(event: progress.Event) -> None:
        nonlocal last
        meter.take(event)
        with lock:  # so that lines of different threads do not mix
            if isinstance(event, progress.Message):
                print_status(event.text)
            elif time.monotonic() - last >= _PLAIN_SECONDS:
                last = time.monotonic()
                print_status(meter.read().text())

    with progress.listening(listen):
        yield
