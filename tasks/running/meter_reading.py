"""The progress of a running build as users see it: the step, the whole build, what went through, the time left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

from tokenloom.wording import about, clock, percent

_LABELS = {
    "cut": "read file structure",
    "prove": "prove the fast encoder",
    "assign": "divide into shards",
    "read": "read files",
    "encode": "encode again",
    "write": "write text",
    "server": "start Prefect server",
}
#: what each timed step of a build makes, in their order
STEPS = {
    "tokenize": "text to spills of token ids",
    "assign": "where each document goes",
    "shuffle": "spills to shards in their global order; about 1,000 documents encoded again",
    "validate": "counts and lengths",
    "publish": "manifest and tag",
}


def step_label(step: str) -> str:
    """Return the name of a step as users see it: "divide into shards" for "assign"."""
    return _LABELS.get(step, step)


@dataclass(frozen=True)
class StepReading:
    """A step that has ended or is in progress: how long it has taken, and what went through, in words.

    `share` in [0, 1] is how much of it is done, None if that is not known. `position` changes whenever work was done.
    """

    name: str
    seconds: float
    details: tuple[str, ...]
    share: float | None
    position: tuple[int, int]


@dataclass(frozen=True)
class Reading:
    """What a Meter shows at one moment.

    `share` in [0, 1] is how much of the whole work is done; None before a step of known weight has begun.
    `has_one_step`: the whole work is a single step, so that one share says all.
    """

    step: StepReading | None
    share: float | None
    has_one_step: bool
    finished: tuple[StepReading, ...]
    next_steps: tuple[str, ...]
    elapsed: float
    seconds_left: float | None

    def text(self) -> str:
        """Return one line: the step, the whole work, what went through, the time left."""
        step = self.step
        label = step_label(step.name) if step else ""
        parts = [f"{label} {percent(step.share)}" if step and _is_shown(step.share) else label]
        if _is_shown(self.share) and not self.has_one_step:
            parts.append(f"overall {percent(self.share)}")
        return ", ".join([*parts, *(step.details if step else ()), *self.times()])

    def times(self) -> list[str]:
        """Return the elapsed time and, if it is known, the time left, in words."""
        left = self.seconds_left
        return [f"{clock(self.elapsed)} elapsed", *([] if left is None else [f"{about(left)} left"])]


def _is_shown(share: float | None) -> TypeGuard[float]:
    """Return whether a share is shown: 0% is not."""
    return share is not None and share >= 0.01
