"""A background thread that makes items ahead of a consumer; and the time that both sides take.

The thread holds a reference to what makes the items, but not to the consumer. It ends when its Prefetcher is dropped,
when the interpreter exits, and after an exception, which the consumer gets with its traceback. A forked child has no
such thread and must make its own Prefetcher.

The thread rests while the consumer requests the next items at once: a batch of 8 x 2,048 tokens took 20 to 36 us
through the thread then, and 17 without it; docs/project/decisions-running.md has more.

Both sides communicate through queues of the standard library's C code, which an interrupt can't leave locked.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Generic, TypeAlias, TypeVar

import numpy as np

from tokenloom.wording import counted

Item = TypeVar("Item")
_JOIN_SECONDS = 5.0
_TIGHT_SECONDS = 50e-6  # a consumer that takes less time for an item does not compute in between
_STOP = 0  # ends the thread, in place of a number of items
PHASES = ("read", "gather", "pack", "copy")
_KEPT_WAITS = 2**14


#: items, or the exception that the thread raised
_Queue: TypeAlias = "SimpleQueue[list[Item] | BaseException]"


class Prefetcher(Generic[Item]):
    """Items that a thread makes ahead, and hands over several at a time: each handover costs both sides Python's lock.

    A consumer that requests the next items at once would only wait for the thread. It makes them itself then.

    Args:
        make: returns the next items, at least one and at most as many as its argument; none at the end of the stream.
        ahead: how many items may wait to be taken, at least 1.
    """

    def __init__(self, make: Callable[[int], list[Item]], ahead: int) -> None:
        self._make, self._ahead = make, ahead
        self._made: _Queue[Item] = SimpleQueue()
        self._room: SimpleQueue[int] = SimpleQueue()
        self._num_requested = ahead  # items requested of the thread and not taken yet; the thread rests at 0
        self._num_taken, self._returned_at = 0, 0.0  # how many items the last call returned, and when
        self._room.put(ahead)
        thread = threading.Thread(
            target=_run, args=(make, self._room, self._made), name="tokenloom-prefetch", daemon=True
        )
        self.close = weakref.finalize(self, _stop, self._room, thread, os.getpid())
        thread.start()

    def take(self) -> list[Item]:
        """Take the next items, those that were made together; none at the end of the stream.

        Raises what the thread raised.
        """
        computes = time.perf_counter() - self._returned_at > self._num_taken * _TIGHT_SECONDS
        # For a consumer that computes, short and frequent waits are better than long and rare ones.
        items = self._take_made() if self._num_requested else self._make(1 if computes else self._ahead)
        room = self._ahead - self._num_requested
        if computes and 2 * room >= self._ahead:  # the thread makes several
            self._num_requested = self._ahead
            self._room.put(room)
        self._num_taken, self._returned_at = len(items), time.perf_counter()
        return items

    def _take_made(self) -> list[Item]:
        made = self._made.get()
        if isinstance(made, BaseException):
            self._made.put(made)  # later calls get it again
            raise made
        if not made:
            self._made.put(made)
        self._num_requested -= len(made)
        return made


def _run(make: Callable[[int], list[Item]], room: SimpleQueue[int], made: _Queue[Item]) -> None:
    try:
        free = 0
        while (free := _free(room, free)) != _STOP:
            items = make(free)
            num_made = len(items)
            made.put(items)
            del items  # the consumer may be done with their memory before the thread continues
            if not num_made:
                return
            free -= num_made
    except BaseException as error:  # noqa: BLE001  # the consumer raises it, whatever it is
        made.put(error)


def _free(room: SimpleQueue[int], free: int) -> int:
    """Wait until there is room, and return for how many items; _STOP to end."""
    while not free or not room.empty():
        more = room.get()
        if more == _STOP:
            return _STOP
        free += more
    return free


def _stop(room: SimpleQueue[int], thread: threading.Thread, pid: int) -> None:
    if pid != os.getpid():  # the thread is the parent's
        return
    room.put(_STOP)
    if thread.ident is not None and thread is not threading.current_thread():  # an interrupt may come before its start
        thread.join(_JOIN_SECONDS)  # after a timeout, it ends once its current items are made


@dataclass
class PhaseTimes:
    """Seconds spent in each phase of making batches, and bytes read ahead of them, by whichever thread makes them."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    bytes_read_ahead: int = 0

    def add(self, phase: str, begin: float) -> float:
        """Add the time since `begin` to a phase; return the time at which the next one begins."""
        now = time.perf_counter()
        self.seconds[phase] += now - begin
        return now


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
    bytes_read_ahead: int  # from the disk; all bytes, if the file system can't tell
    bottleneck: str

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


@dataclass
class Waits:
    """How long a consumer waited for its batches: the total, and each of the last 16,384 waits."""

    num_batches: int = 0
    total: float = 0.0
    first: float | None = None  # seconds to the first batch, which the total leaves out
    _begin: float = 0.0
    _end: float = 0.0
    _last: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT_WAITS))

    def add(self, begin: float, end: float) -> None:
        """Note that a batch was requested at `begin` and returned at `end`."""
        self._end = end
        if self.first is None:
            self.first, self._begin = end - begin, end
            return
        self._last.append(end - begin)
        self.num_batches += 1
        self.total += end - begin

    def stats(self, times: PhaseTimes, batch_tokens: int, memory: dict[str, int]) -> LoaderStats:
        """Sum up the waits of a consumer and the times of a producer.

        Args:
            times: of the producer.
            batch_tokens: the inputs of a batch.
            memory: bytes of mapped shards, and of batches made ahead.
        """
        elapsed = self._end - self._begin or float("inf")
        median, slowest = np.quantile(self._last, [0.5, 0.99]).tolist() if self._last else (0.0, 0.0)
        return LoaderStats(
            batches=self.num_batches + (self.first is not None),
            tokens_per_second=self.num_batches * batch_tokens / elapsed,
            first_batch=self.first or 0.0,
            wait_mean=self.total / max(1, self.num_batches),
            wait_p50=median,
            wait_p99=slowest,
            idle_ratio=self.total / elapsed,
            phases=dict(times.seconds),
            memory=memory,
            bytes_read_ahead=times.bytes_read_ahead,
            bottleneck=_bottleneck(self.num_batches, self.total / elapsed, times.seconds),
        )


def _bottleneck(num_batches: int, idle_ratio: float, phases: dict[str, float]) -> str:
    """Name what limits training: itself if it waits less than 1 % of the time, else the longest phase."""
    if not num_batches:
        return "unknown before the second batch"
    if idle_ratio < 0.01 or not any(phases.values()):
        return "the consumer: it hardly waits"
    return max(phases, key=lambda name: phases[name])
