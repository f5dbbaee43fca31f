"""Where a loader's time goes: seconds and bytes by step, and how long the consumer waited."""

from __future__ import annotations

import time
from collections import deque
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tokenloom.wording import counted

STEPS = ("read", "gather", "pack", "copy")
_KEPT_WAITS = 2**14


class _Step:
    """Counts the time of a `with` block to one step; a class, as a generator takes three times as long."""

    def __init__(self, name: str, times: StepTimes) -> None:
        self._name, self._times = name, times
        self._begin = 0.0

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self._times.seconds[self._name] += time.perf_counter() - self._begin


class StepTimes:
    """Seconds spent in each step of making batches, by whichever thread makes them."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STEPS, 0.0)
        self._steps = {name: _Step(name, self) for name in STEPS}

    def step(self, name: str) -> AbstractContextManager[None]:
        """Return what counts the time of a `with` block to a step; a step is no part of itself."""
        return self._steps[name]


class Waits:
    """How long a consumer waited for its batches: all in sum, and the last 16,384 one by one."""

    def __init__(self) -> None:
        self.num_batches = 0
        self.total = 0.0
        self.first: float | None = None  # seconds to the first batch; not in the total
        self._begin = self._end = 0.0
        self._last: deque[float] = deque(maxlen=_KEPT_WAITS)

    def add(self, begin: float, end: float) -> None:
        """Note that a batch was asked for at `begin` and given at `end`."""
        self._end = end
        if self.first is None:
            self.first, self._begin = end - begin, end
            return
        self._last.append(end - begin)
        self.num_batches += 1
        self.total += end - begin

    @property
    def elapsed(self) -> float:
        """Seconds from the first batch to the last one."""
        return self._end - self._begin

    def quantile(self, share: float) -> float:
        """Return the quantile of the last waits in seconds; 0 before the second batch."""
        return float(np.quantile(self._last, share)) if self._last else 0.0


@dataclass(frozen=True)
class LoaderStats:
    """What a loader has done so far; times in seconds, without the first batch where nothing else is said."""

    batches: int
    tokens_per_second: float
    first_batch: float
    wait_mean: float
    wait_p50: float
    wait_p99: float
    idle_ratio: float  # waiting time by all time
    steps: dict[str, float]  # seconds in each step of making batches
    memory: dict[str, int]  # bytes held: mapped shards, batches ready
    bottleneck: str

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON."""
        return asdict(self)

    def __str__(self) -> str:
        total = sum(self.steps.values()) or 1.0
        lines = [
            f"{counted(self.batches, 'batch')}, {self.tokens_per_second:,.0f} tokens/s, "
            f"first after {self.first_batch:.3f} s",
            f"waiting: mean {self.wait_mean * 1e3:.3f} ms, median {self.wait_p50 * 1e3:.3f} ms, "
            f"99 % below {self.wait_p99 * 1e3:.3f} ms; {self.idle_ratio:.1%} of the time",
            "step       seconds   share",
            *(f"{name:<8} {seconds:>9.3f} {seconds / total:>7.1%}" for name, seconds in self.steps.items()),
            "memory: " + ", ".join(f"{name} {size / 1e6:,.1f} MB" for name, size in self.memory.items()),
            f"bottleneck: {self.bottleneck}",
        ]
        return "\n".join(lines)


def name_bottleneck(num_batches: int, idle_ratio: float, steps: dict[str, float]) -> str:
    """Return what holds training up: itself, if it waits under 1 % of the time, else the longest step."""
    if not num_batches:
        return "not known before the second batch"
    if idle_ratio < 0.01 or not any(steps.values()):
        return "the consumer: it hardly waits"
    longest = max(steps, key=lambda name: steps[name])
    cures = {
        "read": "slow disk or network; more io_threads, or a bigger cache",
        "gather": "copying rows; a bigger prefetch lets it run ahead",
        "pack": "finding documents in rows; fewer fields, or a bigger prefetch",
        "copy": "widening or moving batches; a bigger prefetch lets it run ahead",
    }
    return f"{longest} ({cures[longest]})"
