"""Running the flow from the command line: with the server in PREFECT_API_URL, else with a temporary one."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

from tokenloom.display import say
from tokenloom.errors import TokenloomError
from tokenloom.spec import BuildSpec

_START_SECONDS = 120
# The server ends after this process, however that ends: its standard input closes then.
_SERVE = """
import os, signal, sys, threading, time
def end_with_parent():
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)
    os._exit(0)
threading.Thread(target=end_with_parent, daemon=True).start()
import uvicorn
uvicorn.run("prefect.server.api.server:create_app", factory=True, fd=int(sys.argv[1]), log_level="error")
"""
_servers: list[subprocess.Popen[bytes]] = []  # kept, so that their standard input stays open


def run_flow(spec: BuildSpec, num_workers: int) -> dict[str, Any]:
    """Run the flow build-dataset in this process and return its result; see run_build for errors.

    Args:
        spec: with absolute paths.
        num_workers: worker processes.
    """
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    os.environ.setdefault("DO_NOT_TRACK", "1")
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from tokenloom.flows.build_dataset import build_dataset

    _quiet_console()
    if url := PREFECT_API_URL.value():
        say(f"Prefect server {url}")
        if not _answers(url):
            raise TokenloomError(f"the Prefect server {url} (PREFECT_API_URL) does not answer; --direct does without")
        return dict(build_dataset(spec, num_workers))
    say("no PREFECT_API_URL: a temporary Prefect server is started (analytics off); --direct does without")
    with temporary_settings({PREFECT_API_URL: _start_temporary_server()}):
        return dict(build_dataset(spec, num_workers))


def _start_temporary_server() -> str:
    """Start a Prefect server on a free port of the loopback interface; return the URL of its API.

    Prefect can start one by itself, but that one is left behind by a build that is killed, is hit by the Ctrl-C that
    goes to a terminal's whole group, and may print tracebacks when it stops. This one stops when this process is gone,
    after Prefect's threads have sent their last logs and events to it.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
        server = subprocess.Popen(
            [sys.executable, "-c", _SERVE, str(listener.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
    _servers.append(server)
    _wait_until_healthy(server, url)
    return url


def _wait_until_healthy(server: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not _answers(url):
        if server.poll() is not None or time.monotonic() > deadline:
            raise TokenloomError(
                "no temporary Prefect server could be started; `prefect server start` says why; --direct does without"
            )
        time.sleep(0.1)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=10) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError):
        return False


def _quiet_console() -> None:
    """Keep Prefect's log lines, which go to its server all the same, off the terminal: progress is shown there."""
    from prefect.logging.handlers import PrefectConsoleHandler

    for name in ("", "prefect", "prefect.flow_runs", "prefect.task_runs"):
        for handler in logging.getLogger(name).handlers:
            if isinstance(handler, PrefectConsoleHandler):
                handler.setLevel(logging.CRITICAL + 1)
