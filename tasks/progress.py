"""What a running build tells about itself: the step, and how much of it is done.

Steps call `report`; whoever shows progress (the command line, a flow's log) listens. A listener gets small
plain values and must return at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Planned:
    """It is known which version is built; `published` if it is there already."""

    dataset: str
    version: str
    published: bool


@dataclass(frozen=True)
class StepStarted:
    """A step begins: its name and how much it has to do, in a unit of its own; 0 if that is not known."""

    step: str
    total: int


@dataclass(frozen=True)
class Advanced:
    """Work done since the last report: what went through, and `done` of the step's total."""

    num_documents: int
    num_bytes: int
    num_tokens: int
    done: int


@dataclass(frozen=True)
class Message:
    """A line for the reader."""

    text: str


@dataclass(frozen=True)
class Working:
    """What a worker has in hand from now on, for the message if it dies: "encoding data/a.parquet"."""

    what: str


Event = Planned | StepStarted | Advanced | Message | Working
Listener = Callable[[Event], None]
Teller = Callable[[str], None]
_listeners: list[Listener] = []


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send every event of this process to `listener` while the block runs, and warnings of the log as messages.

    The listener may be called by several threads at once.
    """
    _listeners.append(listener)
    _logger.addHandler(_WARNINGS)  # once, however many listen
    try:
        yield
    finally:
        _listeners.remove(listener)
        if not _listeners:
            _logger.removeHandler(_WARNINGS)


class _Warnings(logging.Handler):
    """Hands on what a store's retries say."""

    def emit(self, record: logging.LogRecord) -> None:
        """Report a warning as a message."""
        report(Message(record.getMessage()))


_logger = logging.getLogger("tokenloom")
_WARNINGS = _Warnings(logging.WARNING)


def report(event: Event) -> None:
    """Tell all listeners."""
    for listener in list(_listeners):
        listener(event)


class Meter:
    """What is done of the step at work, and how fast."""

    def __init__(self) -> None:
        self.step, self.total = "plan", 0
        self.done = self.num_documents = self.num_bytes = self.num_tokens = 0
        self.start = time.monotonic()

    def take(self, event: Event) -> None:
        """Count work done; start anew with another step."""
        if isinstance(event, StepStarted):
            self.step, self.total = event.step, event.total
            self.done = self.num_documents = self.num_bytes = self.num_tokens = 0
            self.start = time.monotonic()
        elif isinstance(event, Advanced):
            self.done += event.done
            self.num_documents += event.num_documents
            self.num_bytes += event.num_bytes
            self.num_tokens += event.num_tokens

    def share(self) -> float:
        """Return how much of the step is done, in [0, 1]; 0 if that is not known."""
        return min(self.done / self.total, 1.0) if self.total else 0.0

    def text(self) -> str:
        """Return one line: step, share done, documents, MB/s, tokens/s, time left."""
        seconds = max(time.monotonic() - self.start, 1e-3)
        parts = [f"{self.step:<9}"]
        if self.total:
            share = self.share()
            parts.append(f"{share:4.0%}")
            parts.append(f"{self.num_documents:,} documents")
            parts.append(f"{self.num_bytes / seconds / 1e6:6.1f} MB/s")
            parts.append(f"{self.num_tokens / seconds / 1e6:6.2f} M tokens/s")
            if 0 < share < 1:
                parts.append(f"{_clock(seconds / share - seconds)} left")
        return "  ".join(parts)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
