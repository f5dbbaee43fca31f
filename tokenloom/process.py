"""Processes of this machine: cores, names that no other process has, and pyarrow without pandas.

pyarrow imports pandas, where it is installed, when it makes its first scalar or array. That takes a third of a second,
which is most of the start of a worker, and a build has no use for it.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

_NAME = re.compile(r"(([0-9a-f-]{36}-\d+-)(\d+)-\d+)")


def num_cores() -> int:
    """Return how many cores this process may use, by its affinity and its container's limit; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, _container_cores()))


def _container_cores() -> int:
    """Return the cores that a container's CPU limit allows, rounded up (cgroup v2); sys.maxsize without a limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return sys.maxsize
    return sys.maxsize if quota == "max" else -(-int(quota) // int(period))


class _NoPandas:
    """Finds no module pandas."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def keep_pandas_out() -> None:
    """Make pyarrow work without pandas in this process, until something else imports it and calls `let_pandas_in`."""
    if "pandas" in sys.modules:
        return
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        import pyarrow as pa

        pa.scalar(0)  # pyarrow looks for pandas once
    finally:
        sys.meta_path.remove(finder)


def let_pandas_in() -> None:
    """Make pyarrow recognize pandas' types if something has imported pandas, such as a user's transform."""
    if "pandas" in sys.modules:
        import pyarrow as pa

        pa.array([]).to_pandas()  # imports pandas, and looks for it again


def is_ending() -> bool:
    """Return whether the program is exiting; it waits for this thread, whose requests can no longer succeed."""
    return not threading.main_thread().is_alive()


def process_name(pid: int) -> str:
    """Return a name that no other process ever has, on any machine: BOOT-NAMESPACE-PID-START.

    Returns "" for a process that has ended, and on a system without /proc, or with the /proc of another namespace.
    """
    try:
        is_ours = os.readlink("/proc/self") == str(os.getpid())
        # It names this start of the kernel: hosts may share a name.
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = os.stat("/proc/self/ns/pid").st_ino
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="latin-1").rpartition(") ")[2].split()
    except OSError:
        return ""
    return f"{boot}-{namespace}-{pid}-{fields[19]}" if is_ours else ""


def has_ended(text: str) -> bool | None:
    """Return whether the process whose process_name a text has in it has ended; None if that can't be known here."""
    found = _NAME.search(text)
    # The first process runs as long as the others; where /proc hides it, it hides those of other users.
    if found is None or not process_name(1).startswith(found[2]):
        return None
    return process_name(int(found[3])) != found[1]
