"""Run a command and watch it (Linux)."""

from __future__ import annotations

import itertools
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path


def run_watched(
    command: list[str], environment: dict[str, str] | None, look: Callable[[int], None], seconds: float
) -> tuple[float, float]:
    """Run a command and call `look` with its process id every `seconds`; exit this program if the command fails.

    Returns:
        Wall seconds, and processor seconds including those of its children.
    """
    with tempfile.TemporaryFile() as errors:
        begin = time.perf_counter()
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=errors)
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            look(process.pid)
            time.sleep(seconds)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}\n{errors.read().decode()}")
    return wall, usage.ru_utime + usage.ru_stime


def run_measured(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Run a command; return its wall seconds, and the largest resident memory of one of its processes in MiB."""
    peaks: dict[int, int] = {}
    looks = itertools.count()

    def look(process: int) -> None:
        if next(looks) % 5 == 0:  # it takes a millisecond, of the processors that the command needs
            peaks.update(peak_kb_of_tree(process))

    wall, _ = run_watched(command, environment, look, 0.02)
    return wall, max(peaks.values(), default=0) / 1024


def peak_kb_of_tree(root: int) -> dict[int, int]:
    """Return {process id: largest resident memory so far in KiB} of a process and all its descendants (Linux).

    rusage would give too much: a command inherits the maximum of the process that starts it.
    """
    peaks: dict[int, int] = {}
    processes = [root]
    for process in processes:  # it grows
        try:
            for path in Path(f"/proc/{process}/task").glob("*/children"):  # each thread has its own
                processes += map(int, path.read_text().split())
            status = Path(f"/proc/{process}/status").read_text()
        except OSError:  # the process or one of its threads has just ended
            continue
        peaks.update((process, int(line.split()[1])) for line in status.splitlines() if line.startswith("VmHWM"))
    return peaks
