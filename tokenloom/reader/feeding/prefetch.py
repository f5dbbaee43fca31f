"""A background thread that makes items ahead of a consumer.

The thread knows only what makes the items, never the consumer: it ends when its Prefetcher is dropped, at the
interpreter's exit, and after an exception, which the consumer gets with its traceback. A child of a fork has no
such thread and must make a Prefetcher of its own.

The thread rests beside a consumer that never lets go of Python's lock: a batch of 8 x 2,048 tokens took 20 to 36 us
through the thread where it is asked for at once, and 17 without; docs/decisions.md has more.

Both sides talk over queues of the standard library's C code, which an interrupt can't leave locked.
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
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
_JOIN_SECONDS = 5.0
_TIGHT_SECONDS = 50e-6  # a consumer that takes less for an item does not compute meanwhile
_KEPT_SHARE = 0.5  # of the lock's switch interval
_KEPT_TIMES = 2  # a busy machine may be slow once
_NAP_SECONDS = 2e-4  # in which a waiting thread wakes up and takes the lock
_REST_SECONDS = 20.0  # then the thread tries again
_STOP = 0  # instead of a number of items that there is room for


@dataclass(frozen=True)
class _Made:
    """Items, and whether the consumer kept Python's lock."""

    items: list[Any]
    lock_is_kept: bool


@dataclass(frozen=True)
class _Raised:
    """Instead of items: what the thread raised."""

    error: BaseException


class Prefetcher(Generic[Item]):
    """Items made ahead by a thread, handed over several at a time: each hand-over costs both sides Python's lock.

    Against a consumer that never lets go of that lock, as it asks for the next items at once or computes in Python,
    the thread would only make it wait: then the consumer makes items itself, and the thread rests.

    Args:
        make: returns up to that many next items, at least one; none at the end of the stream.
        ahead: items that may wait to be taken at most, at least 1.
    """

    def __init__(self, make: Callable[[int], list[Item]], ahead: int) -> None:
        self._make, self._ahead = make, ahead
        self._made: SimpleQueue[Any] = SimpleQueue()
        self._room: SimpleQueue[int] = SimpleQueue()
        self._num_asked = ahead  # of the thread, and not taken yet; with none, it rests
        self._num_taken, self._left = 0, 0.0  # items of the last time, and when it was
        self._num_kept = 0  # times in a row that the thread found the lock kept
        self._rests_until = 0.0
        self._room.put(ahead)
        thread = threading.Thread(
            target=_run, args=(make, self._room, self._made), name="tokenloom-prefetch", daemon=True
        )
        self.close = weakref.finalize(self, _stop, self._room, thread, os.getpid())
        thread.start()

    def take(self) -> list[Item]:
        """Return the next items, as many as were made together; none at the end of the stream.

        Raises what the thread raised.
        """
        now = time.perf_counter()
        computes = now - self._left > self._num_taken * _TIGHT_SECONDS
        if self._num_asked:
            items = self._take_made(now)
        else:  # who computes waits often for a little, not seldom for more
            items = self._make(max(1, self._ahead // 8) if computes else self._ahead)
        room = self._ahead - self._num_asked
        if computes and now >= self._rests_until and 2 * room >= self._ahead:  # so that it makes several at a time
            self._num_asked = self._ahead
            self._room.put(room)
        self._num_taken, self._left = len(items), time.perf_counter()
        return items

    def _take_made(self, now: float) -> list[Item]:
        made = self._made.get()
        if isinstance(made, _Raised) or not made.items:
            self._made.put(made)  # it stays the last
        if isinstance(made, _Raised):
            raise made.error
        self._num_kept = self._num_kept + 1 if made.lock_is_kept else 0
        if self._num_kept == _KEPT_TIMES:
            self._num_kept, self._rests_until = 0, now + _REST_SECONDS
        self._num_asked -= len(made.items)
        return made.items  # type: ignore[no-any-return]  # the thread makes what `make` makes


def _run(make: Callable[[int], list[Any]], room: SimpleQueue[int], made: SimpleQueue[Any]) -> None:
    try:
        free = 0
        while (free := _free(room, free)) != _STOP:
            is_kept = _lock_is_kept()  # now, as the consumer may wait for these items when they are made
            num_made = _put(_Made(make(free), is_kept), made)
            if not num_made:
                return
            free -= num_made
    except BaseException as error:  # noqa: BLE001  # the consumer raises it, whatever it is
        made.put(_Raised(error))


def _lock_is_kept() -> bool:
    """Return whether another thread lets Python's lock go only when it must."""
    begin = time.perf_counter()
    time.sleep(_NAP_SECONDS)
    return time.perf_counter() - begin > _KEPT_SHARE * sys.getswitchinterval()


def _free(room: SimpleQueue[int], free: int) -> int:
    """Return how many items there is room for, once there is some; _STOP to end."""
    while not free or not room.empty():
        more = room.get()
        if more == _STOP:
            return _STOP
        free += more
    return free


def _put(items: _Made, made: SimpleQueue[Any]) -> int:
    """Hand items over, and keep none: the consumer may be done with their memory before the thread goes on."""
    count = len(items.items)
    made.put(items)
    return count


def _stop(room: SimpleQueue[int], thread: threading.Thread, pid: int) -> None:
    if pid != os.getpid():  # the thread is the parent's
        return
    room.put(_STOP)
    if thread.ident is not None and thread is not threading.current_thread():  # an interrupt may come before its start
        thread.join(_JOIN_SECONDS)  # it ends by itself when what it makes is made
