"""A process that is restarted when it ends, for example because it was killed for lack of memory."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

from tokenloom.console import print_status
from tokenloom.errors import TokenloomError
from tokenloom.server.prefect_server import how_ended

_SHORT_SECONDS = 60.0
_MAX_SHORT_LIVES = 3


class SupervisedProcess:
    """A running process, and how to start it again.

    Args:
        name: for messages.
        log: path of the file it writes to.
        process: the running process.
        start: starts another one.
    """

    def __init__(
        self, name: str, log: str, process: subprocess.Popen[bytes], start: Callable[[], subprocess.Popen[bytes]]
    ) -> None:
        self._name, self._log, self.process, self._start = name, log, process, start
        self._started = time.monotonic()
        self._num_short_lives = 0

    def restart_if_ended(self) -> None:
        """Start the process again if it ended.

        Raises:
            TokenloomError: it ended three times in a row, each within a minute of its start.
        """
        code = self.process.poll()
        if code is None:
            return
        is_short = time.monotonic() - self._started < _SHORT_SECONDS
        self._num_short_lives = self._num_short_lives + 1 if is_short else 0
        how = how_ended(code)
        if self._num_short_lives >= _MAX_SHORT_LIVES:
            raise TokenloomError(f"the {self._name} keeps ending ({how}); {self._log} says why")
        print_status(f"the {self._name} ended ({how}; {self._log} says why); restarting it")
        self.process = self._start()
        self._started = time.monotonic()
