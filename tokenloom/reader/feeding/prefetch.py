"""A background thread that makes items ahead of a consumer.

The thread holds a reference to what makes the items, but not to the consumer. It ends when its Prefetcher is dropped,
when the interpreter exits, and after an exception, which the consumer gets with its traceback. A forked child has no
such thread and must make its own Prefetcher.

Both sides communicate through queues of the standard library's C code, which an interrupt can't leave locked.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Generic, TypeAlias, TypeVar

Item = TypeVar("Item")
_JOIN_SECONDS = 5.0
_STOP = 0  # sent instead of a number of items


@dataclass(frozen=True)
class _Raised:
    """What the thread raised, in place of items."""

    error: BaseException


_Queue: TypeAlias = "SimpleQueue[list[Item] | _Raised]"


class Prefetcher(Generic[Item]):
    """Items that a thread makes ahead, and hands over several at a time: each handover costs both sides Python's lock.

    Args:
        make: returns the next items, at least one and at most as many as its argument; none at the end of the stream.
        ahead: how many items may wait to be taken, at least 1.
    """

    def __init__(self, make: Callable[[int], list[Item]], ahead: int) -> None:
        self._made: _Queue[Item] = SimpleQueue()
        self._room: SimpleQueue[int] = SimpleQueue()
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
        made = self._made.get()
        if isinstance(made, _Raised) or not made:
            self._made.put(made)  # later calls get it again
        if isinstance(made, _Raised):
            raise made.error
        self._room.put(len(made))
        return made


def _run(make: Callable[[int], list[Item]], room: SimpleQueue[int], made: _Queue[Item]) -> None:
    try:
        free = 0
        while (free := _free(room, free)) != _STOP:
            num_made = _put(make(free), made)
            if not num_made:
                return
            free -= num_made
    except BaseException as error:  # noqa: BLE001  # the consumer raises it, whatever it is
        made.put(_Raised(error))


def _free(room: SimpleQueue[int], free: int) -> int:
    """Wait until there is room, and return for how many items; _STOP to end."""
    while not free or not room.empty():
        more = room.get()
        if more == _STOP:
            return _STOP
        free += more
    return free


def _put(items: list[Item], made: _Queue[Item]) -> int:
    """Hand items over and keep no reference: the consumer may be done with their memory before the thread continues."""
    count = len(items)
    made.put(items)
    return count


def _stop(room: SimpleQueue[int], thread: threading.Thread, pid: int) -> None:
    if pid != os.getpid():  # the thread is the parent's
        return
    room.put(_STOP)
    if thread.ident is not None and thread is not threading.current_thread():  # an interrupt may come before its start
        thread.join(_JOIN_SECONDS)  # after a timeout, it ends once its current items are made
