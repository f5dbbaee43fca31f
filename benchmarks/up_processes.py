"""Run a separate `tokenloom up`, and read the memory and time of processes from /proc (Linux)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tokenloom.server.up_folder import running_url
from watched import run_watched

STOP_SECONDS = 60


@dataclass(frozen=True)
class Up:
    """A running `tokenloom up`: its folder, the URL of its API, the ids of its processes."""

    home: Path
    api: str
    worker: int
    server: int


@contextmanager
def running_up(folder: Path, *options: str) -> Iterator[Up]:
    """Run `tokenloom up` on a free port with its data in `folder`; end it with Ctrl-C."""
    home = folder / "up"
    environment = os.environ | {"TOKENLOOM_UP_HOME": str(home)}
    environment.pop("PREFECT_API_URL", None)
    command = [sys.executable, "-m", "tokenloom", "up", "--port", "0", *options]
    up = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert up.stdout is not None  # a pipe
        if not any("Ctrl-C" in line for line in up.stdout):
            raise SystemExit("tokenloom up did not start")
        api = running_url(home)
        assert api is not None  # written before the last line is printed
        yield Up(home, api, child_of(up.pid, "worker"), child_of(up.pid, "server_process"))
    finally:
        up.send_signal(signal.SIGINT)
        up.communicate(timeout=STOP_SECONDS)
    if up.returncode:
        raise SystemExit(f"tokenloom up ended with exit code {up.returncode}")


def child_of(parent: int, word: str) -> int:
    """Return the child of a process whose command line contains a word."""
    children = [
        int(pid) for path in Path(f"/proc/{parent}/task").glob("*/children") for pid in path.read_text().split()
    ]
    (found,) = (pid for pid in children if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes())
    return found


def resident_mb(process: int) -> float:
    """Return the resident memory of a process; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")), 0.0)


def cpu_seconds(process: int) -> float:
    """Return the processor time of a process, without its children."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Ran:
    """The cost of a command: `cpu` includes its children, `resident` [(time, MB)] does not."""

    wall: float
    cpu: float
    resident: list[tuple[float, float]]

    @property
    def peak_mb(self) -> float:
        """The peak resident memory."""
        return max(mb for _, mb in self.resident)

    def growth_mb(self, since: float) -> float:
        """Return the peak resident memory after a time, minus the memory at that time."""
        at_once = [mb for moment, mb in self.resident if moment <= since][-1]
        return max(mb for moment, mb in self.resident if moment >= since) - at_once


def watched(command: list[str], environment: dict[str, str]) -> Ran:
    """Run a command to its end and sample its memory; exit this program if it fails."""
    resident: list[tuple[float, float]] = []

    def look(process: int) -> None:
        resident.append((time.time(), resident_mb(process)))

    wall, cpu = run_watched(command, environment, look, 0.05)
    return Ran(wall, cpu, [(moment, mb) for moment, mb in resident if mb])
