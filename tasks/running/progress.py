"""Events of a running build: which step begins, and how much of it is done.

The path of an event, from where the work is done to where users see it:

    worker process   report, the pipe to its parent (workers.py), WorkerPool.call, which reports it here
    cluster worker   report, a list that travels with the task's result (recorded), replayed, which reports it here
    this process     report
    storage          a warning in the log of `tokenloom`, as storage has no events; while a listener is set, a Message
                         |
                         v
    listeners        one per display, with a Meter: bars or lines of a command (cli/display.py), the log of a run
                     (flows/runners.py)

`Working` is only for the parent of a worker process and goes no further. A listener must return at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from tokenloom.wording import about, clock, counted, percent

Result = TypeVar("Result")

_LABELS = {
    "cut": "read file structure",
    "prove": "prove the fast encoder",
    "assign": "divide into shards",
    "read": "read files",
    "encode": "encode again",
    "write": "write text",
}
#: the result of each timed step of a build, in their order
STEPS = {
    "tokenize": "text to spills of token ids",
    "mark": "marks to numbers of copies",
    "assign": "where each document goes",
    "merge": "many spills to fewer runs",
    "shuffle": "spills to shards in their global order",
    "check": "about 1,000 documents encoded again",
    "validate": "counts and lengths",
    "publish": "manifest and tag",
}


def step_label(step: str) -> str:
    """Return the name of a step as users see it: "divide into shards" for "assign"."""
    return _LABELS.get(step, step)


@dataclass(frozen=True)
class StepStarted:
    """A step begins; `total` is how much it has to do, in a unit of its own, and 0 if unknown.

    `parts` names the results of the step, such as "partitions", and `num_parts` is how many.
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
    """Work was done since the last report: amounts of data, and `done` of the step's total."""

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
    """The next work of a worker process, for the message if it dies: "encoding data/a.parquet"."""

    what: str


Event = StepStarted | Reused | Advanced | Message | Working
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


class Step:
    """A step that is in progress or has ended: its time, and the amounts of data."""

    def __init__(self, began: StepStarted) -> None:
        self.name, self._began = began.step, began
        self._start, self._end = time.monotonic(), 0.0
        self._num_reused = self._reused = self._done = 0
        self._num_documents = self._num_bytes = self._num_tokens = 0

    def add(self, event: Event) -> None:
        """Count reused parts and work done."""
        if isinstance(event, Reused):
            self._num_reused += event.num_parts
            self._reused += event.done
        elif isinstance(event, Advanced):
            self._num_documents += event.num_documents
            self._num_bytes += event.num_bytes
            self._num_tokens += event.num_tokens
            self._done += event.done

    def end(self) -> None:
        """Stop its clock."""
        self._end = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long it has taken."""
        return (self._end or time.monotonic()) - self._start

    @property
    def share(self) -> float | None:
        """How much is done, in [0, 1]; None if that is not known."""
        total = self._began.total
        return min((self._reused + self._done) / total, 1.0) if total else None

    def details(self) -> str:
        """Return the amounts in words: reused parts, documents, rates; "" if there are none."""
        details, seconds = [], max(self.seconds, 1e-3)
        if self._num_reused:
            details.append(f"{self._num_reused:,} of {self._began.num_parts:,} {self._began.parts} reused")
        if self._num_documents:
            details.append(counted(self._num_documents, "document"))
        if (megabytes := self._num_bytes / seconds / 1e6) >= 0.05:
            details.append(f"{megabytes:,.1f} MB/s")
        if (million_tokens := self._num_tokens / seconds / 1e6) >= 0.005:
            details.append(f"{million_tokens:,.2f} M tokens/s")
        return ", ".join(details)

    def note(self) -> str:
        """Return the amounts, the elapsed time and, once a tenth is done, the time left."""
        to_do = self._began.total - self._reused
        left = self.seconds * (to_do - self._done) / self._done if 10 * self._done >= to_do > 0 else None
        times = [f"{clock(self.seconds)} elapsed", *([] if left is None else [f"{about(left)} left"])]
        return ", ".join([*filter(None, [self.details()]), *times])

    def line(self) -> str:
        """Return one line: the step, how much of it is done, and its note."""
        share = f" {percent(self.share)}" if self.share else ""
        return f"{step_label(self.name)}{share}, {self.note()}"


class Meter:
    """Follows the steps by their events; any thread may call.

    Attributes:
        step: the one in progress, None before the first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.step: Step | None = None

    def take(self, event: Event) -> Step | None:
        """Count an event; return the step that it ended, if it did."""
        with self._lock:
            if isinstance(event, StepStarted):
                ended, self.step = self._ended(), Step(event)
                return ended
            if self.step:
                self.step.add(event)
            return None

    def finish(self) -> Step | None:
        """End the step in progress; return it, if there is one."""
        with self._lock:
            return self._ended()

    def _ended(self) -> Step | None:
        step, self.step = self.step, None
        if step:
            step.end()
        return step


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


def warn(lines: Iterable[str]) -> None:
    """Report lines for the reader."""
    for line in lines:
        report(Message(line))
