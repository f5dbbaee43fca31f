"""The progress of a build, added up from its events.

The terminal, the log of a run and its artifact all show the Reading of a Meter. The share of the whole build is the
sum of the steps' shares by the weights of WorkKnown. It never falls, not even when a damaged file sends a build back
to an earlier step. The time left follows the pace of this run only, since reused work took no time.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from tokenloom.tasks.running.meter_reading import Reading, StepReading
from tokenloom.tasks.running.progress import Advanced, Event, Reported, Reused, StepStarted, WorkKnown
from tokenloom.wording import counted

_MIN_SHARE = 0.02  # a smaller share of a step or of the work says nothing about its pace
_MIN_SECONDS = 2.0  # a build starts with processes and the tokenizer, which say nothing about its pace
_LONG_SECONDS = 30.0  # after this time, how a step started no longer matters


@dataclass
class _Step:
    """What is known about one step."""

    began: StepStarted
    reported: Reported = field(default_factory=Reported)
    start: float = field(default_factory=lambda: time.monotonic())
    first_advance: float | None = None

    def take(self, event: Reused | Advanced) -> None:
        self.reported.add(event)
        if isinstance(event, Advanced) and self.first_advance is None:
            self.first_advance = time.monotonic()

    @property
    def name(self) -> str:
        return self.began.step

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.start

    @property
    def is_measured(self) -> bool:
        """Whether its work has gone on for long enough to know its pace."""
        first = self.first_advance
        return first is not None and (time.monotonic() - first >= _MIN_SECONDS or self.seconds >= _LONG_SECONDS)

    @property
    def done(self) -> int:
        return self.reported.reused.done + self.reported.advanced.done

    @property
    def share(self) -> float:
        """How much is done, in [0, 1]; 0 if that is not known."""
        return min(self.done / self.began.total, 1.0) if self.began.total else 0.0

    @property
    def reused_share(self) -> float:
        """How much was done before this run, in [0, share]."""
        return min(self.reported.reused.done / self.began.total, 1.0) if self.began.total else 0.0

    def details(self) -> tuple[str, ...]:
        """Return what went through, in words: reused parts, documents, rates."""
        details, began, advanced = [], self.began, self.reported.advanced
        if num_reused := self.reported.reused.num_parts:
            details.append(f"{num_reused:,} of {began.num_parts:,} {began.parts} reused")
        if advanced.num_documents:
            details.append(counted(advanced.num_documents, "document"))
        seconds = max(self.seconds, 1e-3)
        if (megabytes := advanced.num_bytes / seconds / 1e6) >= 0.05:
            details.append(f"{megabytes:,.1f} MB/s")
        if (million_tokens := advanced.num_tokens / seconds / 1e6) >= 0.005:
            details.append(f"{million_tokens:,.2f} M tokens/s")
        return tuple(details)

    def read(self) -> StepReading:
        share = self.share if self.began.total else None
        position = self.done, self.reported.advanced.num_bytes
        return StepReading(self.name, self.seconds, self.details(), share, position)


class Meter:
    """Adds events up; any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._start = time.monotonic()
        self._finished: list[StepReading] = []
        self._step: _Step | None = None
        self._weights: dict[str, float] = {}
        self._share = 0.0
        self._work_seconds = self._worked = 0.0  # sums over the weighted steps that this run has ended

    def take(self, event: Event) -> list[StepReading]:
        """Count an event; return the step that it ended, if it did."""
        with self._lock:
            ended: list[StepReading] = []
            if isinstance(event, WorkKnown):
                self._weights = dict(event.weights)
            elif isinstance(event, StepStarted):
                ended = self._end_step()
                self._step = _Step(event)
            elif isinstance(event, Reused | Advanced) and self._step:
                self._step.take(event)
            self._share = max(self._share, self._share_now())
            return ended

    def finish(self) -> list[StepReading]:
        """End the step in progress; return it, if there is one."""
        with self._lock:
            return self._end_step()

    def read(self) -> Reading:
        """Return the progress of the work now."""
        with self._lock:
            name = self._step.name if self._step else None
            return Reading(
                step=self._step.read() if self._step else None,
                share=self._share if name in self._weights or self._share else None,
                has_one_step=len(self._weights) == 1,
                finished=tuple(self._finished),
                next_steps=tuple(self._next_steps()),
                elapsed=time.monotonic() - self._start,
                seconds_left=self._seconds_left(),
            )

    def _end_step(self) -> list[StepReading]:
        step, self._step = self._step, None
        if step is None:
            return []
        if step.name in self._weights:
            self._work_seconds += step.seconds
            self._worked += self._weights[step.name] * (1 - step.reused_share)
        self._finished.append(step.read())
        return self._finished[-1:]

    def _next_steps(self) -> list[str]:
        """Return the steps after the one in progress, as far as they are known."""
        names = list(self._weights)
        return names[names.index(self._step.name) + 1 :] if self._step and self._step.name in names else names

    def _seconds_left(self) -> float | None:
        """Return about how long the rest of the work takes; None while too little of it is done for an estimate."""
        step = self._step
        if step is None or step.name not in self._weights:
            return None
        if not (self._worked or step.is_measured):
            return None
        weight, own = self._weights[step.name], step.share - step.reused_share
        worked, seconds = self._worked + weight * own, self._work_seconds + step.seconds
        if worked < _MIN_SHARE * sum(self._weights.values()) or seconds < _MIN_SECONDS:
            return None
        pace = seconds / worked
        rest = (1 - step.share) * (step.seconds / own if own > _MIN_SHARE else weight * pace)
        return rest + pace * sum(self._weights[name] for name in self._next_steps())

    def _share_now(self) -> float:
        if self._step is None or self._step.name not in self._weights:
            return 0.0
        names, total = list(self._weights), sum(self._weights.values()) or 1.0
        before = sum(self._weights[name] for name in names[: names.index(self._step.name)])
        return (before + self._weights[self._step.name] * self._step.share) / total
