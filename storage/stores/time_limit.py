"""Calls with a time limit, to an event loop or a blocking library; they are abandoned early when the program ends.

Python cannot end a blocking call, so it runs in a daemon thread. Once a call is abandoned, nothing waits for its
thread, and its file system is not used again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

POLL_SECONDS = 0.1  # between checks whether the program ends


def is_ending() -> bool:
    """Return whether the program is exiting; it waits for this thread, whose requests can no longer succeed."""
    return not threading.main_thread().is_alive()


def result_of(answer: Future[Any], seconds: float) -> Any:
    """Return the result of a future; raises TimeoutError if it takes longer, or if the program ends."""
    end = time.monotonic() + seconds
    try:
        while not wait([answer], timeout=min(POLL_SECONDS, max(0.0, end - time.monotonic()))).done:
            if is_ending() or time.monotonic() >= end:
                raise TimeoutError(f"no answer in {seconds:.1f} s")
        return answer.result()
    finally:
        answer.cancel()


class BlockingFileSystem:
    """A file system whose library blocks, as that of sftp:// does; makes one call at a time, each with a time limit.

    Most such libraries have one connection, which two threads would corrupt. After a failure the next call makes a
    new file system: a lost connection stays lost, and an abandoned thread may still use the old one.

    Args:
        scheme: the scheme of its URLs.
        make: returns a new file system; it may connect to its server.
    """

    def __init__(self, scheme: str, make: Callable[[], Any]) -> None:
        self._urls, self._make, self._free = f"{scheme}://", make, threading.Lock()
        self._system: Any = None

    def run(self, seconds: float, name: str, *args: str, **options: Any) -> Any:
        """Call a method of the file system with paths in place of URLs, as many libraries accept only paths.

        Connecting and the call have `seconds` each, counted from the end of the calls before this one.

        Raises what the method raises, and TimeoutError.
        """
        with self._free:
            try:
                if self._system is None:
                    self._system = result_of(_start(self._make), seconds)
                self._system.invalidate_cache()  # of listings
                paths = [self._system._strip_protocol(arg) if arg.startswith(self._urls) else arg for arg in args]
                return result_of(_start(partial(getattr(self._system, name), *paths, **options)), seconds)
            except (FileNotFoundError, FileExistsError, PermissionError):  # answers, not failures
                raise
            except BaseException:
                self._system = None
                raise


def _start(call: Callable[[], Any]) -> Future[Any]:
    """Start a call in a thread that does not delay the program's exit."""
    answer: Future[Any] = Future()

    def work() -> None:
        if not answer.set_running_or_notify_cancel():
            return
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001  (raised by result_of)
            answer.set_exception(error)

    threading.Thread(target=work, name="tokenloom-call", daemon=True).start()
    return answer
