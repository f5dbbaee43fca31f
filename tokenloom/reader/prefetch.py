"""A background thread that makes items ahead of a consumer.

The thread knows only what makes the items, never the consumer: it ends when its Prefetcher is dropped, at the
interpreter's exit, and after an exception, which the consumer gets with its traceback. A child of a fork has no
such thread and must make a Prefetcher of its own.

Both sides talk over queues of the standard library's C code, which an interrupt can't leave locked.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
_JOIN_SECONDS = 5.0
_STOP = 0  # instead of a number of items that there is room for
_END = object()  # instead of an item


@dataclass(frozen=True)
class _Raised:
    """Instead of an item: what the thread raised."""

    error: BaseException


class Prefetcher(Generic[Item]):
    """Items made ahead by a thread.

    Args:
        make: returns up to that many next items, at least one; none at the end of the stream.
        ahead: items that may be ready at most, at least 1.
    """

    def __init__(self, make: Callable[[int], list[Item]], ahead: int) -> None:
        self._items: SimpleQueue[Any] = SimpleQueue()
        self._room: SimpleQueue[int] = SimpleQueue()
        self._taken, self._told_after = 0, max(1, ahead // 2)  # so that the thread makes several at a time
        self._room.put(ahead)
        thread = threading.Thread(
            target=_run, args=(make, self._room, self._items), name="tokenloom-prefetch", daemon=True
        )
        thread.start()
        self.close = weakref.finalize(self, _stop, self._room, thread, os.getpid())

    def take(self) -> Item | None:
        """Return the next item, None at the end of the stream; raises what the thread raised."""
        item = self._items.get()
        if isinstance(item, _Raised):
            self._items.put(item)  # it stays the last
            raise item.error
        if item is _END:
            self._items.put(_END)
            return None
        self._taken += 1
        if self._taken == self._told_after:
            self._taken = 0
            self._room.put(self._told_after)
        return item  # type: ignore[no-any-return]  # the thread puts items alone


def _run(make: Callable[[int], list[Any]], room: SimpleQueue[int], items: SimpleQueue[Any]) -> None:
    try:
        free = 0
        while (free := _free(room, free)) != _STOP:
            num_made = _put(make(free), items)
            if not num_made:
                items.put(_END)
                return
            free -= num_made
    except BaseException as error:  # noqa: BLE001  # the consumer raises it, whatever it is
        items.put(_Raised(error))


def _free(room: SimpleQueue[int], free: int) -> int:
    """Return how many items there is room for, once there is some; _STOP to end."""
    while not free or not room.empty():
        more = room.get()
        if more == _STOP:
            return _STOP
        free += more
    return free


def _put(made: list[Any], items: SimpleQueue[Any]) -> int:
    """Hand items over, and keep none: the consumer may be done with their memory before the thread goes on."""
    for item in made:
        items.put(item)
    return len(made)


def _stop(room: SimpleQueue[int], thread: threading.Thread, pid: int) -> None:
    if pid != os.getpid():  # the thread is the parent's
        return
    room.put(_STOP)
    if thread is not threading.current_thread():
        thread.join(_JOIN_SECONDS)  # it ends by itself when what it makes is made
