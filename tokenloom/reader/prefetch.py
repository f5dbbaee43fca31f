"""A background thread that makes items ahead of a consumer.

The thread knows only what makes the items, never the consumer: it ends when its Prefetcher is dropped, at the
interpreter's exit, and after an exception, which the consumer gets with its traceback. A child of a fork has no
such thread and must make a Prefetcher of its own.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Item = TypeVar("Item")
_JOIN_SECONDS = 5.0


@dataclass
class _Shared(Generic[Item]):
    """What the thread and its consumer share; `changed` guards it."""

    items: deque[Item] = field(default_factory=deque)
    error: BaseException | None = None
    finished: bool = False
    stopping: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)
    pid: int = field(default_factory=os.getpid)


class Prefetcher(Generic[Item]):
    """Items made ahead by a thread.

    Args:
        make: returns up to that many next items; none at the end of the stream.
        ahead: items that may be ready at most, at least 1.
    """

    def __init__(self, make: Callable[[int], list[Item]], ahead: int) -> None:
        self._shared: _Shared[Item] = _Shared()
        self._room_at = ahead // 2  # the thread is woken when so few are left, so that it makes several at a time
        thread = threading.Thread(target=_run, args=(make, ahead, self._shared), name="tokenloom-prefetch", daemon=True)
        self.close = weakref.finalize(self, _stop, self._shared, thread)
        thread.start()

    def take(self) -> Item | None:
        """Return the next item, None at the end of the stream; raises what the thread raised."""
        shared = self._shared
        if not shared.items:
            return self._wait()
        item = shared.items.popleft()  # one operation, and only the consumer takes: no lock is needed
        if len(shared.items) == self._room_at:
            with shared.changed:
                shared.changed.notify_all()
        return item

    def _wait(self) -> Item | None:
        shared = self._shared
        with shared.changed:
            shared.changed.notify_all()
            while not shared.items and not shared.finished and shared.error is None:
                shared.changed.wait()
            if shared.items:
                return shared.items.popleft()
            if shared.error is not None:
                raise shared.error
            return None


def _run(make: Callable[[int], list[Item]], ahead: int, shared: _Shared[Item]) -> None:
    try:
        while (wanted := _room(ahead, shared)) > 0:
            items = make(wanted)
            with shared.changed:
                shared.items.extend(items)
                shared.finished = not items
                shared.changed.notify_all()
            del items  # else it would keep the memory of batches that the consumer is done with
    except BaseException as error:  # noqa: BLE001  # the consumer raises it, whatever it is
        with shared.changed:
            shared.error = error
            shared.changed.notify_all()


def _room(ahead: int, shared: _Shared[Item]) -> int:
    """Return how many items to make next, once there is room; 0 to end."""
    with shared.changed:
        while not shared.stopping and not shared.finished and len(shared.items) > ahead // 2:
            shared.changed.wait()
        return 0 if shared.stopping or shared.finished else ahead - len(shared.items)


def _stop(shared: _Shared[Item], thread: threading.Thread) -> None:
    if shared.pid != os.getpid():  # the thread is the parent's, and it may have held the lock when we were forked
        return
    with shared.changed:
        shared.stopping = True
        shared.changed.notify_all()
    if thread is not threading.current_thread():
        thread.join(_JOIN_SECONDS)  # it ends by itself when what it makes is made
