"""Run a command and watch it (Linux)."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tokenloom.examples.lesson_tools import run_watched

_LOOK_SECONDS = 0.2
_PR_SET_CHILD_SUBREAPER = 36


def run_measured(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Run a command; return its wall seconds, and the largest resident memory of one of its processes in MiB."""
    finished = run_watched(command, environment)
    return finished.wall_seconds, finished.peak_bytes / 2**20


@dataclass
class Used:
    """What a command used together with its child processes, also if it was killed.

    Attributes:
        output: what it wrote to stdout.
        exit_code: -9 if it was killed.
        cpu: seconds of processor time.
        moved: bytes that it read and wrote, by system calls and from and to the disk: names as in /proc/PID/io.
        peaks: the largest resident memory of each process in bytes, its own first.
        descriptors: the most that one of its processes had open at a time.
    """

    output: str = ""
    exit_code: int = 0
    wall: float = 0.0
    cpu: float = 0.0
    moved: dict[str, int] = field(default_factory=dict)
    peaks: dict[int, int] = field(default_factory=dict)
    descriptors: int = 0

    def look(self, root: int) -> None:
        """Add what a process and its descendants hold now; one of them may just have ended."""
        processes = [root]
        for process in processes:  # it grows
            with suppress(OSError):
                for path in Path(f"/proc/{process}/task").glob("*/children"):  # each thread has its own
                    processes += map(int, path.read_text().split())
                status = Path(f"/proc/{process}/status").read_text()
                _, mark, peak = status.partition("VmHWM:")
                self.peaks[process] = int(peak.split()[0]) * 1024 if mark else self.peaks.get(process, 0)
                self.descriptors = max(self.descriptors, len(os.listdir(f"/proc/{process}/fd")))


def run_used(
    command: Sequence[str], environment: Mapping[str, str], is_time_to_kill: Callable[[], bool] = lambda: False
) -> Used:
    """Run a command, or kill it with SIGKILL when that is due; return what it used when all its processes have ended.

    Raises SystemExit with what it wrote to stderr, if it fails by itself.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # so that orphans of a killed command count, too
    used, before, killed = Used(), _moved(), False
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        start = time.perf_counter()
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=errors, text=True)
        while True:
            ended, status, usage = os.wait4(-1, os.WNOHANG)
            if ended:
                used.cpu += usage.ru_utime + usage.ru_stime
                used.exit_code = os.waitstatus_to_exitcode(status) if ended == process.pid else used.exit_code
                with suppress(ChildProcessError):  # the last one has ended
                    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                    continue
                break
            used.look(process.pid)
            if not killed and is_time_to_kill():
                killed = True
                os.kill(process.pid, signal.SIGKILL)
            time.sleep(_LOOK_SECONDS)
        used.wall = time.perf_counter() - start
        process.returncode = used.exit_code
        used.moved = {name: count - before[name] for name, count in _moved().items()}
        output.seek(0)
        errors.seek(0)
        used.output = output.read()
        if used.exit_code and not killed:
            raise SystemExit(f"{' '.join(command)}: exit code {used.exit_code}\n{errors.read()}")
    return used


def _moved() -> dict[str, int]:
    """Return what this process and its children that have ended have read and written so far."""
    lines = (line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    names = ("rchar", "wchar", "read_bytes", "write_bytes")
    return {name: int(count) for name, count in lines if name in names}
