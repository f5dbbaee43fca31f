"""Parents and children of processes: end with the parent, adopt orphans, end and reap children (Linux)."""

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


def end_with_parent(seconds: float) -> None:
    """End this process, which leads its own group, when its standard input closes, as it does when its parent ends.

    Args:
        seconds: time for an orderly end after SIGTERM; then the whole group is killed.
    """

    def wait() -> None:
        os.read(0, 1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(seconds)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends. Does nothing on systems other than Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_children(keep: Collection[int]) -> None:
    """Reap exited children, except those in `keep`, which someone else waits for."""
    for pid in children() - set(keep):
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def terminate_children(keep: Collection[int]) -> None:
    """Send SIGTERM to the children of this process, except those in `keep`."""
    for pid in children() - set(keep):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def kill_children(keep: Collection[int]) -> None:
    """Kill the descendants of this process, except those in `keep` and theirs; wait until they are gone.

    Gives up after a few seconds.
    """
    deadline = time.monotonic() + _END_SECONDS
    while (found := children() - set(keep)) and time.monotonic() < deadline:
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        reap_children(keep)  # their own children become children of this process
        time.sleep(0.01)


def children() -> set[int]:
    """Return the children of this process."""
    return {pid for pid, parent in _parents().items() if parent == os.getpid()}


def _parents() -> dict[int, int]:
    """Return the parent of every process on this machine."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has ended
            found[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    return found
