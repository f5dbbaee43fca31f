"""The process of the Prefect worker that `tokenloom up` starts: `python -m tokenloom.worker_process worker start ...`.

Ctrl-C of the terminal does not reach it: it stops first, and then the server that it talks to. It needs a working
SIGINT, which it sends to itself, and ends with its parent, however that ends.
"""

from __future__ import annotations

import signal

from prefect.cli import app

from tokenloom.orphans import follow_parent

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    follow_parent(seconds=15)
    app()
