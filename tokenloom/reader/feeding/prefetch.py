"""A background thread that makes items ahead of a consumer.

The thread holds a reference to what makes the items, but not to the consumer. It ends when its Prefetcher is dropped,
when the interpreter exits, and after an exception, which the consumer gets with its traceback. A forked child has no
such thread and must make its own Prefetcher.

The thread rests while the consumer never releases Python's lock: a batch of 8 x 2,048 tokens that is requested at once
took 20 to 36 us through the thread, and 17 without it; docs/project/decisions-running.md has more.

Both sides communicate through queues of the standard library's C code, which an interrupt can't leave locked.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Generic, TypeAlias, TypeVar

Item = TypeVar("Item")
_JOIN_SECONDS = 5.0
_TIGHT_SECONDS = 50e-6  # a consumer that takes less time for an item does not compute in between
_KEPT_SHARE = 0.5  # a nap of more than this share of the lock's switch interval found the lock kept
_KEPT_TIMES = 2  # a busy machine may be slow once in a while
_NAP_SECONDS = 2e-4  # enough for a waiting thread to wake up and take the lock
REST_SECONDS = 20.0  # then the thread is tried again
_STOP = 0  # ends the thread, in place of a number of items


@dataclass(frozen=True)
class _Made(Generic[Item]):
    """Items, and whether the consumer kept Python's lock."""

    items: list[Item]
    lock_is_kept: bool


@dataclass(frozen=True)
class _Raised:
    """What the thread raised, in place of items."""

    error: BaseException


_Queue: TypeAlias = "SimpleQueue[_Made[Item] | _Raised]"


class Prefetcher(Generic[Item]):
    """Items that a thread makes ahead, and hands over several at a time: each handover costs both sides Python's lock.

    A consumer that never releases that lock, because it requests the next items at once or computes in Python, would
    only wait for the thread. It makes the items itself then, and the thread rests.

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
        self._num_kept = 0  # how many times in a row the thread found the lock kept
        self._rests_until = 0.0
        self._room.put(ahead)
        thread = threading.Thread(
            target=_run, args=(make, self._room, self._made), name="tokenloom-prefetch", daemon=True
        )
        self.close = weakref.finalize(self, _stop, self._room, thread, os.getpid())
        thread.start()

    def take(self) -> list[Item]:
        """Return the next items, those that were made together; none at the end of the stream.

        Raises what the thread raised.
        """
        now = time.perf_counter()
        computes = now - self._returned_at > self._num_taken * _TIGHT_SECONDS
        # For a consumer that computes, short and frequent waits are better than long and rare ones.
        items = self._take_made(now) if self._num_requested else self._make(1 if computes else self._ahead)
        room = self._ahead - self._num_requested
        makes_several = 2 * room >= self._ahead  # each handover costs both sides the lock
        if computes and now >= self._rests_until and makes_several:
            self._num_requested = self._ahead
            self._room.put(room)
        self._num_taken, self._returned_at = len(items), time.perf_counter()
        return items

    def _take_made(self, now: float) -> list[Item]:
        made = self._made.get()
        if isinstance(made, _Raised) or not made.items:
            self._made.put(made)  # later calls get it again
        if isinstance(made, _Raised):
            raise made.error
        self._num_kept = self._num_kept + 1 if made.lock_is_kept else 0
        if self._num_kept == _KEPT_TIMES:
            self._num_kept, self._rests_until = 0, now + REST_SECONDS
        self._num_requested -= len(made.items)
        return made.items


def _run(make: Callable[[int], list[Item]], room: SimpleQueue[int], made: _Queue[Item]) -> None:
    try:
        free = 0
        while (free := _free(room, free)) != _STOP:
            is_kept = _lock_is_kept()  # checked now: once the items are made, the consumer may be waiting for them
            num_made = _put(_Made(make(free), is_kept), made)
            if not num_made:
                return
            free -= num_made
    except BaseException as error:  # noqa: BLE001  # the consumer raises it, whatever it is
        made.put(_Raised(error))


def _lock_is_kept() -> bool:
    """Return whether another thread releases Python's lock only when it must."""
    begin = time.perf_counter()
    time.sleep(_NAP_SECONDS)
    return time.perf_counter() - begin > _KEPT_SHARE * sys.getswitchinterval()


def _free(room: SimpleQueue[int], free: int) -> int:
    """Wait until there is room, and return for how many items; _STOP to end."""
    while not free or not room.empty():
        more = room.get()
        if more == _STOP:
            return _STOP
        free += more
    return free


def _put(items: _Made[Item], made: _Queue[Item]) -> int:
    """Hand items over and keep no reference: the consumer may be done with their memory before the thread continues."""
    count = len(items.items)
    made.put(items)
    return count


def _stop(room: SimpleQueue[int], thread: threading.Thread, pid: int) -> None:
    if pid != os.getpid():  # the thread is the parent's
        return
    room.put(_STOP)
    if thread.ident is not None and thread is not threading.current_thread():  # an interrupt may come before its start
        thread.join(_JOIN_SECONDS)  # after a timeout, it ends once its current items are made
