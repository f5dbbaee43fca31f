"""How far a build is: the step at work, the whole build, what an earlier run left, and the time left.

The terminal, the log of a run and its artifact all show this one model. The share of the whole build is the sum of
the steps' shares by the weights of WorkKnown; it never falls, also where a damaged file sends a build back to an
earlier step. The time left follows the pace of this run alone: work that was reused took no time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TypeGuard

from tokenloom.tasks.running.progress import Advanced, Event, Reused, StepStarted, WorkKnown
from tokenloom.wording import about, clock, counted, percent

_LABELS = {
    "cut": "read file structure",
    "assign": "divide into shards",
    "read": "read files",
    "encode": "encode again",
    "write": "write text",
    "server": "start Prefect",
}
_LEAST_SHARE = 0.02  # of a step or of the work: less says nothing about its pace
_LEAST_SECONDS = 1.0


def step_label(step: str) -> str:
    """Return what people read for a step: "divide into shards" for "assign"."""
    return _LABELS.get(step, step)


@dataclass
class _Step:
    """What is known about one step; `reused` is the part of `done` that this run did not do."""

    name: str
    total: int = 0
    parts: str = ""
    num_parts: int = 0
    num_reused: int = 0
    done: int = 0
    reused: int = 0
    num_documents: int = 0
    num_bytes: int = 0
    num_tokens: int = 0
    start: float = field(default_factory=lambda: time.monotonic())

    def take(self, event: Reused | Advanced) -> None:
        self.done += event.done
        if isinstance(event, Reused):
            self.reused += event.done
            self.num_reused += event.num_parts
        else:
            self.num_documents += event.num_documents
            self.num_bytes += event.num_bytes
            self.num_tokens += event.num_tokens

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.start

    @property
    def share(self) -> float:
        """How much is done, in [0, 1]; 0 if that is not known."""
        return min(self.done / self.total, 1.0) if self.total else 0.0

    @property
    def reused_share(self) -> float:
        """How much was done before this run, in [0, share]."""
        return min(self.reused / self.total, 1.0) if self.total else 0.0

    def details(self) -> list[str]:
        """Return what went through, in words: reused parts, documents, rates."""
        details = []
        if self.num_reused:
            details.append(f"{self.num_reused:,} of {self.num_parts:,} {self.parts} reused")
        if self.num_documents:
            details.append(counted(self.num_documents, "document"))
        seconds = max(self.seconds, 1e-3)
        if (megabytes := self.num_bytes / seconds / 1e6) >= 0.05:
            details.append(f"{megabytes:,.1f} MB/s")
        if (million_tokens := self.num_tokens / seconds / 1e6) >= 0.005:
            details.append(f"{million_tokens:,.2f} M tokens/s")
        return details


@dataclass(frozen=True)
class Finished:
    """A step that has ended: how long it took, and what went through, in words."""

    step: str
    seconds: float
    details: tuple[str, ...]


class Meter:
    """Adds events up. Not safe for threads: whoever shows it holds a lock."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self.finished: list[Finished] = []
        self._num_taken = 0  # of those
        self._step: _Step | None = None
        self._weights: dict[str, float] = {}
        self._share = 0.0
        self._work_seconds = self._worked = 0.0  # of the weighted steps that this run has ended

    def take(self, event: Event) -> None:
        """Count an event."""
        if isinstance(event, WorkKnown):
            self._weights = dict(event.weights)
        elif isinstance(event, StepStarted):
            self.finish()
            self._step = _Step(event.step, event.total, event.parts, event.num_parts)
        elif isinstance(event, Reused | Advanced) and self._step:
            self._step.take(event)
        self._share = max(self._share, self._share_now())

    def finish(self) -> None:
        """End the step at work, if there is one."""
        if step := self._step:
            self.finished.append(Finished(step.name, step.seconds, tuple(step.details())))
            if step.name in self._weights:
                self._work_seconds += step.seconds
                self._worked += self._weights[step.name] * (1 - step.reused_share)
        self._step = None

    def take_ended(self) -> list[Finished]:
        """Return the steps that have ended since the last call."""
        new = self.finished[self._num_taken :]
        self._num_taken = len(self.finished)
        return new

    @property
    def step(self) -> str | None:
        """The name of the step at work; None between steps."""
        return self._step.name if self._step else None

    @property
    def position(self) -> tuple[str | None, int, int]:
        """What changes as the work moves: the step, how much of it is done, the bytes that went through."""
        return (self._step.name, self._step.done, self._step.num_bytes) if self._step else (None, 0, 0)

    @property
    def steps_to_come(self) -> list[str]:
        """The steps after the one at work, as far as they are known."""
        names = list(self._weights)
        return names[names.index(self.step) + 1 :] if self.step in names else names

    @property
    def has_one_step(self) -> bool:
        """Whether the whole work is a single step, so that one share says all."""
        return len(self._weights) == 1

    def step_share(self) -> float | None:
        """Return how much of the step is done, in [0, 1]; None if that is not known."""
        return self._step.share if self._step and self._step.total else None

    def step_seconds(self) -> float:
        """Return how long the step has run."""
        return self._step.seconds if self._step else 0.0

    def step_details(self) -> list[str]:
        """Return what went through the step, in words."""
        return self._step.details() if self._step else []

    def share(self) -> float | None:
        """Return how much of the whole work is done, in [0, 1]; None before a step of known weight has begun."""
        return self._share if self.step in self._weights or self._share else None

    def elapsed(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self.start

    def seconds_left(self) -> float | None:
        """Return how long the rest of the work takes, about; None while too little of it is done to say."""
        step = self._step
        if step is None or step.name not in self._weights:
            return None
        weight, own = self._weights[step.name], step.share - step.reused_share
        worked, seconds = self._worked + weight * own, self._work_seconds + step.seconds
        if worked < _LEAST_SHARE * sum(self._weights.values()) or seconds < _LEAST_SECONDS:
            return None
        pace = seconds / worked
        rest = (1 - step.share) * (step.seconds / own if own > _LEAST_SHARE else weight * pace)
        return rest + pace * sum(self._weights[name] for name in self.steps_to_come)

    def _share_now(self) -> float:
        if self._step is None or self._step.name not in self._weights:
            return 0.0
        names, total = list(self._weights), sum(self._weights.values()) or 1.0
        before = sum(self._weights[name] for name in names[: names.index(self._step.name)])
        return (before + self._weights[self._step.name] * self._step.share) / total

    def text(self) -> str:
        """Return one line: the step, the whole work, what went through, the time left."""
        share, step_share = self.share(), self.step_share()
        parts = [step_label(self.step or "") + (f" {percent(step_share)}" if _is_shown(step_share) else "")]
        if _is_shown(share) and not self.has_one_step:
            parts.append(f"overall {percent(share)}")
        return ", ".join([*parts, *self.step_details(), *self.times()])

    def times(self) -> list[str]:
        """Return the time that passed and, if it is known, the time left, in words."""
        left = self.seconds_left()
        return [f"{clock(self.elapsed())} elapsed", *([] if left is None else [f"{about(left)} left"])]


def _is_shown(share: float | None) -> TypeGuard[float]:
    """Whether a share is worth a word: "0%" is not."""
    return share is not None and share >= 0.01
