"""What a running build tells about itself: the step, and how much of it is done.

Steps call `report`; whoever shows progress (the command line, a flow's log) listens. A listener gets small
plain values and must return at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class StepStarted:
    """A step begins: its name and what it will work through, in `unit` ("bytes" or "tokens")."""

    step: str
    total: int
    unit: str


@dataclass(frozen=True)
class Advanced:
    """Work done since the last report: input bytes and tokens."""

    num_bytes: int
    num_tokens: int


@dataclass(frozen=True)
class Message:
    """A line for the reader."""

    text: str


@dataclass(frozen=True)
class Working:
    """What a worker has in hand from now on, for the message if it dies: "encoding data/a.parquet"."""

    what: str


Event = StepStarted | Advanced | Message | Working
Listener = Callable[[Event], None]
Teller = Callable[[str], None]
_listeners: list[Listener] = []


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send every event of this process to `listener` while the block runs."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def report(event: Event) -> None:
    """Tell all listeners."""
    for listener in list(_listeners):
        listener(event)
