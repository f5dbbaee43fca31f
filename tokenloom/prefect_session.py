"""Running the flow from the command line: with the server in PREFECT_API_URL, else with a temporary one."""

from __future__ import annotations

import logging
import os
import signal
from typing import Any

from tokenloom.display import say
from tokenloom.spec import BuildSpec


def run_flow(spec: BuildSpec, num_workers: int) -> dict[str, Any]:
    """Run the flow build-dataset in this process and return its result; see run_build for errors.

    Args:
        spec: with absolute paths.
        num_workers: worker processes.
    """
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    os.environ.setdefault("DO_NOT_TRACK", "1")
    from prefect.settings import PREFECT_API_URL

    from tokenloom.flows.build_dataset import build_dataset

    if PREFECT_API_URL.value():
        say(f"Prefect server {PREFECT_API_URL.value()}")
    else:
        say("no PREFECT_API_URL: a temporary Prefect server is started (analytics off); --direct does without")
        _start_temporary_server()
    _quiet_console()
    result: dict[str, Any] = build_dataset(spec, num_workers)
    return result


def _start_temporary_server() -> None:
    """Start the server that Prefect would start when first needed, and that ends with this process.

    Ctrl-C goes to the whole group of a terminal; a server that it ended would leave the flow to try for minutes to
    report its own end. So the server inherits a blocked SIGINT; Prefect stops it with SIGTERM.
    """
    from prefect.server.api.server import SubprocessASGIServer

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        SubprocessASGIServer().start()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _quiet_console() -> None:
    """Keep Prefect's log lines, which go to its server all the same, off the terminal: progress is shown there."""
    for name in ("", "prefect", "prefect.flow_runs", "prefect.task_runs"):
        for handler in logging.getLogger(name).handlers:
            if type(handler).__name__ == "PrefectConsoleHandler":
                handler.setLevel(logging.CRITICAL + 1)
