"""A process that is started again when it ends by itself, such as killed for lack of memory."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

from tokenloom.cli.display import say
from tokenloom.errors import TokenloomError

_SHORT_SECONDS = 60.0
_MOST_SHORT_LIVES = 3


class Kept:
    """A running process and how to start it again.

    Args:
        name: for messages.
        log: where it writes.
        process: that runs.
        start: starts another one.
    """

    def __init__(
        self, name: str, log: str, process: subprocess.Popen[bytes], start: Callable[[], subprocess.Popen[bytes]]
    ) -> None:
        self._name, self._log, self.process, self._start = name, log, process, start
        self._started = time.monotonic()
        self._num_short_lives = 0

    def keep(self) -> None:
        """Start the process again if it ended; raises TokenloomError if it does so at once again and again."""
        code = self.process.poll()
        if code is None:
            return
        is_short = time.monotonic() - self._started < _SHORT_SECONDS
        self._num_short_lives = self._num_short_lives + 1 if is_short else 0
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        if self._num_short_lives >= _MOST_SHORT_LIVES:
            raise TokenloomError(f"the {self._name} ended again and again ({how}); {self._log} says why")
        say(f"the {self._name} ended ({how}; {self._log} says why); it is started again")
        self.process = self._start()
        self._started = time.monotonic()
