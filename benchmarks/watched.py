"""Run a command and watch it (Linux)."""

from __future__ import annotations

import itertools
import subprocess
import tempfile
import time
from pathlib import Path


def run_measured(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Run a command; return its wall seconds, and the largest resident memory of one of its processes in MiB.

    Raises SystemExit if the command fails.
    """
    peaks: dict[int, int] = {}
    with tempfile.TemporaryFile() as errors:
        begin = time.perf_counter()
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=errors)
        for look in itertools.count():
            if process.poll() is not None:
                break
            if look % 5 == 0:  # it takes a millisecond, of the processors that the command needs
                peaks.update(peak_kb_of_tree(process.pid))
            time.sleep(0.02)
        wall = time.perf_counter() - begin
        if process.returncode:
            errors.seek(0)
            raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}\n{errors.read().decode()}")
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
