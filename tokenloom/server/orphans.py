"""Processes and their parents: ending with one's own, and what becomes of those whose parent ended (Linux)."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
_END_SECONDS = 5.0


def follow_parent(seconds: float) -> None:
    """Let this process, which leads its own group, end when its standard input closes: as its parent ends, however.

    Args:
        seconds: for an orderly end by SIGTERM; then the whole group is killed.
    """

    def wait() -> None:
        os.read(0, 1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(seconds)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def adopt_orphans() -> None:
    """Become the parent of all processes below this one whose own parent ends; elsewhere than on Linux nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def bury_children(but: Collection[int]) -> None:
    """Take leave of adopted processes that have ended, but of those, which others wait for."""
    for pid in children() - set(but):
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def end_children(but: Collection[int]) -> None:
    """Ask every child of this process, but those, to end."""
    for pid in children() - set(but):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def kill_children(but: Collection[int]) -> None:
    """Kill every process below this one, but those and what is below them; wait a few seconds until they are gone."""
    deadline = time.monotonic() + _END_SECONDS
    while (found := children() - set(but)) and time.monotonic() < deadline:
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        bury_children(but)  # what they started are children of this process then
        time.sleep(0.01)


def children() -> set[int]:
    """Return the children of this process (Linux)."""
    return {pid for pid, parent in _parents().items() if parent == os.getpid()}


def descendants(pid: int) -> set[int]:
    """Return the children of a process, theirs, and so on (Linux)."""
    parents = _parents()
    found: set[int] = set()
    newest = {pid}
    while newest := {child for child, parent in parents.items() if parent in newest} - found:
        found |= newest
    return found


def _parents() -> dict[int, int]:
    """Return {process: its parent} of all processes (Linux)."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            found[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    return found
