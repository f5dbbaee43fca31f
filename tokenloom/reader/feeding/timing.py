"""Where a loader spends its time: seconds in each phase of making batches, and how long the consumer waited."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import asdict, dataclass

import numpy as np

from tokenloom.wording import counted

PHASES = ("read", "gather", "pack", "copy")
_KEPT_WAITS = 2**14


class Phase:
    """Adds up the time of `with` blocks, not nested; a class, because a generator takes three times as long."""

    seconds = 0.0

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self.seconds += time.perf_counter() - self._begin


class PhaseTimes:
    """Time spent in each phase of making batches, and bytes read ahead of them, by whichever thread makes them."""

    def __init__(self) -> None:
        self.read, self.gather, self.pack, self.copy = Phase(), Phase(), Phase(), Phase()
        self.bytes_read_ahead = 0

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds of each phase, by its name."""
        return {name: getattr(self, name).seconds for name in PHASES}


class Waits:
    """How long a consumer waited for its batches: the total, and each of the last 16,384 waits."""

    def __init__(self) -> None:
        self.num_batches = 0
        self.total = 0.0
        self.first: float | None = None  # seconds to the first batch, which the total leaves out
        self._begin = self._end = 0.0
        self._last: deque[float] = deque(maxlen=_KEPT_WAITS)

    def add(self, begin: float, end: float) -> None:
        """Note that a batch was requested at `begin` and returned at `end`."""
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
        """Return a quantile of the last waits, in seconds; 0 before the second batch."""
        return float(np.quantile(self._last, share)) if self._last else 0.0


@dataclass(frozen=True)
class LoaderStats:
    """What a loader has done so far; times are in seconds and leave out the first batch unless noted."""

    batches: int
    tokens_per_second: float
    first_batch: float
    wait_mean: float
    wait_p50: float
    wait_p99: float
    idle_ratio: float  # waiting time divided by all time
    phases: dict[str, float]  # seconds in each phase of making batches
    memory: dict[str, int]  # bytes of mapped shards, and of batches made ahead
    bytes_read_ahead: int  # whole blocks that came from the disk
    bottleneck: str

    def to_json(self) -> dict[str, object]:
        """Return the fields as JSON."""
        return asdict(self)

    def __str__(self) -> str:
        total = sum(self.phases.values()) or 1.0
        lines = [
            f"{counted(self.batches, 'batch')}, {self.tokens_per_second:,.0f} tokens/s, "
            f"first after {self.first_batch:.3f} s",
            f"waiting: mean {self.wait_mean * 1e3:.3f} ms, median {self.wait_p50 * 1e3:.3f} ms, "
            f"99 % below {self.wait_p99 * 1e3:.3f} ms; {self.idle_ratio:.1%} of the time",
            "phase      seconds   share",
            *(f"{name:<8} {seconds:>9.3f} {seconds / total:>7.1%}" for name, seconds in self.phases.items()),
            "memory: " + ", ".join(f"{name} {size / 1e6:,.1f} MB" for name, size in self.memory.items()),
            f"read ahead: {self.bytes_read_ahead / 1e6:,.1f} MB",
            f"bottleneck: {self.bottleneck}",
        ]
        return "\n".join(lines)


def name_bottleneck(num_batches: int, idle_ratio: float, phases: dict[str, float]) -> str:
    """Return what limits training: itself if it waits less than 1 % of the time, else the longest phase."""
    if not num_batches:
        return "unknown before the second batch"
    if idle_ratio < 0.01 or not any(phases.values()):
        return "the consumer: it hardly waits"
    longest = max(phases, key=lambda name: phases[name])
    remedies = {
        "read": "slow disk or network; use more io_threads, or a larger cache",
        "gather": "copying rows; a larger prefetch lets it run ahead",
        "pack": "finding documents in rows; use fewer fields, or a larger prefetch",
        "copy": "widening or moving batches; a larger prefetch lets it run ahead",
    }
    return f"{longest} ({remedies[longest]})"
