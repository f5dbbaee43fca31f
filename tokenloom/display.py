"""Progress of a build on stderr: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tokenloom.tasks import progress
from tokenloom.tasks.progress import Meter

_PLAIN_SECONDS = 5.0


@contextmanager
def showing_progress() -> Iterator[None]:
    """Show what the steps report while the block runs."""
    with _live_line() if sys.stderr.isatty() else _plain_lines():
        yield


@contextmanager
def _live_line() -> Iterator[None]:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    meter, lock = Meter(), threading.Lock()
    console = Console(stderr=True)

    def listen(event: progress.Event) -> None:
        with lock:
            _take(event, meter, lambda text: console.print(text, markup=False, highlight=False))

    def line() -> Text:
        return Text(meter.text())

    with (
        Live(get_renderable=line, console=console, refresh_per_second=8, transient=True),
        progress.listening(listen),
    ):
        yield


@contextmanager
def _plain_lines() -> Iterator[None]:
    meter, lock = Meter(), threading.Lock()
    last = 0.0

    def listen(event: progress.Event) -> None:
        nonlocal last
        with lock:
            _take(event, meter, say)
            if isinstance(event, progress.StepStarted):
                last = meter.start
            elif time.monotonic() - last >= _PLAIN_SECONDS:
                last = time.monotonic()
                say(meter.text())

    with progress.listening(listen):
        yield


def _take(event: progress.Event, meter: Meter, tell: progress.Teller) -> None:
    meter.take(event)
    if isinstance(event, progress.Message):
        tell(event.text)


def say(text: str) -> None:
    """Write a line for the reader to stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
