"""Events of a running build: which step begins, and how much of it is done.

The path of an event, from where the work is done to where users see it:

    worker process   report, the pipe to its parent (worker_process.serve), WorkerPool.call, which reports it here
    cluster worker   report, a list that travels with the task's result (recorded), replayed, which reports it here
    this process     report
    storage          a warning in the log of `tokenloom`, as storage has no events; while a listener is set, a Message
                         |
                         v
    listeners        one per display; each has a Meter, which adds the events up, and shows its Reading:
                     on a terminal (cli/live_display.py), as plain lines (cli/display.py), or in the
                     log of a run (flows/runs/step_log.py)

`Working` is only for the parent of a worker process and goes no further. A listener must return at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

Result = TypeVar("Result")
Counted = TypeVar("Counted", "Reused", "Advanced")


@dataclass(frozen=True)
class Planned:
    """The version to build is known; `published` if it exists already."""

    dataset: str
    version: str
    published: bool


@dataclass(frozen=True)
class WorkKnown:
    """The estimated share of the work that each coming step takes: (step, weight) in order, all in one unit."""

    weights: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class StepStarted:
    """A step begins; `total` is how much it has to do, in a unit of its own, and 0 if unknown.

    `parts` names what the step makes, such as "partitions", and `num_parts` is how many.
    """

    step: str
    total: int
    parts: str = ""
    num_parts: int = 0


@dataclass(frozen=True)
class Reused:
    """An earlier run has already made `num_parts` parts of this step: `done` of its total."""

    num_parts: int = 0
    done: int = 0


@dataclass(frozen=True, kw_only=True)
class Advanced:
    """Work was done since the last report: what went through, and `done` of the step's total.

    As in Reused, values below 0 take back what a call reported that is made again.
    """

    num_documents: int = 0
    num_bytes: int = 0
    num_tokens: int = 0
    done: int = 0


@dataclass(frozen=True)
class Message:
    """A line for the reader."""

    text: str


@dataclass(frozen=True)
class Working:
    """What a worker process is about to do, for the message if it dies: "encoding data/a.parquet"."""

    what: str


Event = Planned | WorkKnown | StepStarted | Reused | Advanced | Message | Working
Listener = Callable[[Event], None]
_listeners: list[Listener] = []


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send every event of this process to `listener` during the block, and logged warnings as messages.

    The listener may be called by several threads at once.
    """
    _listeners.append(listener)
    _logger.addHandler(_WARNINGS)  # once, however many listeners there are
    try:
        yield
    finally:
        _listeners.remove(listener)
        if not _listeners:
            _logger.removeHandler(_WARNINGS)


class Reported:
    """The sums of what was reported; a call that fails and is made again takes them back.

    Attributes:
        reused: the sum of the events Reused.
        advanced: the sum of the events Advanced.
    """

    def __init__(self) -> None:
        self.reused, self.advanced = Reused(), Advanced()

    def add(self, event: Event) -> None:
        """Add an event to the sums."""
        if isinstance(event, Reused):
            self.reused = _sum(self.reused, event)
        elif isinstance(event, Advanced):
            self.advanced = _sum(self.advanced, event)

    def take_back(self) -> None:
        """Report the opposite of the sums."""
        report(_sum(Reused(), self.reused, -1))
        report(_sum(Advanced(), self.advanced, -1))


def _sum(before: Counted, event: Counted, sign: int = 1) -> Counted:
    """Return two events of a kind as one, the second with its counts times `sign`."""
    added = asdict(event)
    return replace(before, **{name: number + sign * added[name] for name, number in asdict(before).items()})


def recorded(call: Callable[[], Result]) -> tuple[Result, list[Event]]:
    """Run `call` in this thread of a cluster worker; return its result and the events for `replayed`."""
    thread = threading.get_ident()  # a worker may run several tasks in threads
    events: list[Event] = []

    def listen(event: Event) -> None:
        if threading.get_ident() == thread and not isinstance(event, Working):
            events.append(event)

    with listening(listen):
        return call(), events


def replayed(outcome: tuple[Result, list[Event]]) -> Result:
    """Report the events of `recorded` in this process, and return its result."""
    result, events = outcome
    for event in events:
        report(event)
    return result


class _Warnings(logging.Handler):
    """Passes on warnings, such as those of a store that retries a request."""

    def emit(self, record: logging.LogRecord) -> None:
        """Report a warning as a message."""
        report(Message(record.getMessage()))


_logger = logging.getLogger("tokenloom")
_WARNINGS = _Warnings(logging.WARNING)


def report(event: Event) -> None:
    """Pass an event to all listeners."""
    for listener in list(_listeners):
        listener(event)
