"""Progress of a build on stderr: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tokenloom.tasks import progress

_PLAIN_SECONDS = 5.0


class _Meter:
    """What is done of the step at work, and how fast."""

    def __init__(self) -> None:
        self.step, self.total, self.unit = "plan", 0, ""
        self.done = {"bytes": 0, "tokens": 0}
        self.start = time.monotonic()

    def begin(self, event: progress.StepStarted) -> None:
        self.step, self.total, self.unit = event.step, event.total, event.unit
        self.done = {"bytes": 0, "tokens": 0}
        self.start = time.monotonic()

    def text(self) -> str:
        """Return one line: step, share done, MB/s, tokens/s, time left."""
        seconds = max(time.monotonic() - self.start, 1e-3)
        parts = [f"{self.step:<9}"]
        if self.total:
            share = min(self.done[self.unit] / self.total, 1.0)
            parts.append(f"{share:4.0%}")
            parts.append(f"{self.done['bytes'] / seconds / 1e6:6.1f} MB/s")
            parts.append(f"{self.done['tokens'] / seconds / 1e6:6.2f} M tokens/s")
            if 0 < share < 1:
                parts.append(f"{_clock(seconds / share - seconds)} left")
        return "  ".join(parts)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


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

    meter, lock = _Meter(), threading.Lock()
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
    meter, lock = _Meter(), threading.Lock()
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


def _take(event: progress.Event, meter: _Meter, tell: progress.Teller) -> None:
    if isinstance(event, progress.StepStarted):
        meter.begin(event)
    elif isinstance(event, progress.Message):
        tell(event.text)
    elif isinstance(event, progress.Advanced):
        meter.done["bytes"] += event.num_bytes
        meter.done["tokens"] += event.num_tokens


def say(text: str) -> None:
    """Write a line for the reader to stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
