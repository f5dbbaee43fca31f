"""Calls that are given up when their time is over, or the program ends: of an event loop, or of a library that blocks.

A blocking call can't be ended. It runs in a thread that nobody waits for any more once it is given up, and what it
uses is used by nobody else again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

LOOK_SECONDS = 0.1  # between looks whether the program ends


def is_ending() -> bool:
    """Return whether the program ends: its end waits for this thread, whose requests can't succeed any more."""
    return not threading.main_thread().is_alive()


def awaited(answer: Future[Any], seconds: float) -> Any:
    """Return the result of a future; raises TimeoutError if it takes longer, or the program ends."""
    end = time.monotonic() + seconds
    try:
        while not wait([answer], timeout=min(LOOK_SECONDS, max(0.0, end - time.monotonic()))).done:
            if is_ending() or time.monotonic() >= end:
                raise TimeoutError(f"no answer in {seconds:.1f} s")
        return answer.result()
    finally:
        answer.cancel()


class OneConnection:
    """A file system whose library blocks, as that of sftp:// does: one call at a time, each with a time limit.

    Most such libraries have one connection, which two threads would confuse. After a failure the next call makes a
    new file system: a lost connection stays lost, and a thread that was given up may use it still.

    Args:
        protocol: of its URLs.
        make: returns a new file system, which it may connect to its server for.
    """

    def __init__(self, protocol: str, make: Callable[[], Any]) -> None:
        self._urls, self._make, self._free = f"{protocol}://", make, threading.Lock()
        self._system: Any = None

    def run(self, seconds: float, name: str, *args: str, **options: Any) -> Any:
        """Return what a method of the file system returns, which is given paths for URLs: many know those alone.

        Connecting and the call have `seconds` each, which begin when the calls before this one have ended.

        Raises what the method raises, and TimeoutError.
        """
        with self._free:
            try:
                if self._system is None:
                    self._system = awaited(_begun(self._make), seconds)
                self._system.invalidate_cache()  # of listings
                paths = [self._system._strip_protocol(arg) if arg.startswith(self._urls) else arg for arg in args]
                return awaited(_begun(partial(getattr(self._system, name), *paths, **options)), seconds)
            except (FileNotFoundError, FileExistsError, PermissionError):  # answers
                raise
            except BaseException:
                self._system = None
                raise


def _begun(call: Callable[[], Any]) -> Future[Any]:
    """Begin a call in a thread that the program's end does not wait for."""
    answer: Future[Any] = Future()

    def work() -> None:
        if not answer.set_running_or_notify_cancel():
            return
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001  (raised where it is awaited)
            answer.set_exception(error)

    threading.Thread(target=work, name="tokenloom-call", daemon=True).start()
    return answer
