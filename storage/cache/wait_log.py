"""What a thread says in the log when it waits for another process: after ten seconds, then every minute."""

from __future__ import annotations

import logging
import time

_FIRST_SECONDS = 10.0
_LOG_SECONDS = 60.0
_logger = logging.getLogger("tokenloom")


class WaitLog:
    """One wait, which begins now."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._due_at = self._began + _FIRST_SECONDS

    @property
    def seconds(self) -> float:
        """How long the wait has taken."""
        return time.monotonic() - self._began

    @property
    def is_due(self) -> bool:
        """Whether it is time for a line in the log."""
        return time.monotonic() >= self._due_at

    def write(self, place: object, what: str, advice: str = "") -> None:
        """Write a line that names the place, what the thread waits for, and what to do."""
        self._due_at = time.monotonic() + _LOG_SECONDS
        _logger.warning("%s: waiting for %s, %.0f s so far%s", place, what, self.seconds, advice and f"; {advice}")


def name_process(pid: int | None) -> str:
    """Return how the log names a process; None if it is unknown."""
    return f"process {pid}" if pid else "another process"
