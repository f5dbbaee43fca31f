"""Run a command and watch it (Linux)."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable


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
