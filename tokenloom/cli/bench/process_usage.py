"""Measure the memory and processor time of this process and its worker processes."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path


def resident_memory() -> dict[str, float]:
    """Return the resident, proportional and shared bytes of this process and its workers; {} without /proc."""
    names = {"Rss": "rss", "Pss": "pss", "Shared_Clean": "shared", "Shared_Dirty": "shared"}
    found: dict[str, float] = {}
    try:
        for process in _processes():
            for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]:
                if name := names.get(line.partition(":")[0]):
                    found[name] = found.get(name, 0) + 1024 * int(line.split()[1])
    except OSError:
        return {}
    return found


def cpu_seconds() -> float:
    """Return the processor time in seconds of this process and, with /proc, of its workers."""
    total = time.process_time()
    try:
        for process in _processes()[1:]:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return total
    return total


def _processes() -> list[str]:
    """Return the names of the folders in /proc of this process and its workers."""
    return ["self", *(str(process.pid) for process in multiprocessing.active_children())]
