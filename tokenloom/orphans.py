"""Processes that outlive the one that started them, such as a flow run whose worker was killed (Linux)."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
_END_SECONDS = 5.0


def adopt_orphans() -> None:
    """Become the parent of all processes below this one whose own parent ends; elsewhere than on Linux nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_children(but: Collection[int] = ()) -> None:
    """Kill every process below this one, but those and what is below them; wait until they are gone."""
    deadline = time.monotonic() + _END_SECONDS
    while (found := [pid for pid in _children(os.getpid()) if pid not in but]) and time.monotonic() < deadline:
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)  # what it has started is a child of this process then


def _children(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            if int(path.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(path.parent.name))
    return found
