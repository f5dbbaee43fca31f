"""How many cores this process may use."""

from __future__ import annotations

import os
import sys
from pathlib import Path


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
