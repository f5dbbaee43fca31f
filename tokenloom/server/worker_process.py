"""The process of the Prefect worker of `tokenloom up`: `python -m tokenloom.server.worker_process worker start ...`.

Ctrl-C of the terminal does not reach it: it stops first, and then the server that it talks to. It needs a working
SIGINT, which it sends to itself, and ends with its parent, however that ends.
"""

from __future__ import annotations

import logging
import signal

from prefect.cli import app

from tokenloom.server.orphans import follow_parent


def _is_not_general_advice(record: logging.LogRecord) -> bool:
    """Return False for the advice that a worker logs for each run that died, after the line that says why."""
    return not (record.levelno == logging.INFO and record.getMessage().startswith("Check "))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    logging.getLogger("prefect.flow_runs.worker").addFilter(_is_not_general_advice)
    follow_parent(seconds=15)
    app()
