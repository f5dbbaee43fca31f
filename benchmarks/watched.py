"""Run a command and watch it (Linux)."""

from __future__ import annotations

from tokenloom.examples.lesson_tools import run_watched


def run_measured(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Run a command; return its wall seconds, and the largest resident memory of one of its processes in MiB."""
    finished = run_watched(command, environment)
    return finished.wall_seconds, finished.peak_bytes / 2**20
