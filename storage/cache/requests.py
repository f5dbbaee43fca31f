"""Several requests to a store at a time, in threads that a program's exit does not wait for.

The threads of an executor would be joined at exit before anything can tell them that the program ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue


class Requests:
    """Calls that run in threads.

    Args:
        calls: what to call; each once.
        num_threads: at a time, at least 1.
    """

    def __init__(self, calls: Iterable[Callable[[], object]], num_threads: int) -> None:
        self._calls: SimpleQueue[Callable[[], object]] = SimpleQueue()
        for call in calls:
            self._calls.put(call)
        self._errors: list[BaseException] = []
        count = min(num_threads, self._calls.qsize())
        self._threads = [
            threading.Thread(target=self._work, daemon=True, name="tokenloom-blocks") for _ in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        while not self._errors:
            try:
                call = self._calls.get_nowait()
            except Empty:
                return
            try:
                call()
            except BaseException as error:  # noqa: BLE001  (`wait` raises it)
                self._errors.append(error)

    def wait(self) -> None:
        """Wait for all calls; raise the first error, after which no further call begins."""
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]
