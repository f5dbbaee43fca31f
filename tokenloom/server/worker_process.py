"""The process of the Prefect worker of `tokenloom up`: `python -m tokenloom.server.worker_process worker start ...`.

It runs in a process group of its own, so Ctrl-C in the terminal does not reach it: `tokenloom up` stops it before the
server that it talks to. It restores the default handler of SIGINT, which Prefect's worker sends to itself, and ends
when its parent ends.
"""

from __future__ import annotations

import logging
import signal

from prefect.cli import app

from tokenloom.server.process_tree import end_with_parent


def _is_not_general_advice(record: logging.LogRecord) -> bool:
    """Return False for the advice that a worker logs about every run that died, after the line that says why."""
    return not (record.levelno == logging.INFO and record.getMessage().startswith("Check "))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    logging.getLogger("prefect.flow_runs.worker").addFilter(_is_not_general_advice)
    end_with_parent(seconds=15)
    app()
