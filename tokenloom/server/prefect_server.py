"""Start and stop a Prefect server on the loopback interface. It ends with the process that started it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from typing import IO

from tokenloom.errors import TokenloomError

_START_SECONDS = 120
_STOP_SECONDS = 15
#: settings of the server and its clients: no telemetry, and no second server
PRIVATE = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",  # a client without a URL fails; it does not start its own server
}

POOL = "tokenloom"  # the work pool
WORKER = "up"  # name of the worker of `tokenloom up`

_servers: list[subprocess.Popen[bytes]] = []  # referenced here so that their standard input stays open


def disable_telemetry() -> None:
    """Turn off Prefect's telemetry here and in child processes; call it before Prefect is imported."""
    for name, value in PRIVATE.items():
        os.environ.setdefault(name, value)


def start_server(port: int = 0, log: IO[bytes] | None = None) -> tuple[subprocess.Popen[bytes], str]:
    """Start a server, wait until it answers, and return its process and the URL of its API.

    A server that Prefect itself starts outlives a killed program, receives the terminal's Ctrl-C, and may print
    tracebacks when it stops.

    Args:
        port: a port of 127.0.0.1; 0 for a free one.
        log: the file for the server's output; None discards it.

    Raises:
        TokenloomError: the port is taken, or the server does not start.
    """
    with _listener(port) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
        server = _launch(listener.fileno(), url, log or subprocess.DEVNULL)
    try:
        _wait_until_healthy(server, url, "`prefect server start`" if log is None else log.name)
    except BaseException:
        server.kill()
        server.wait()
        raise
    _servers.append(server)
    return server, url


def _launch(listener: int, url: str, output: IO[bytes] | int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tokenloom.server.server_process", str(listener)],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        pass_fds=[listener],
        start_new_session=True,
        env=os.environ | {"PREFECT_SERVER_UI_API_URL": url},  # Prefect can't know the port of an inherited socket
    )


def _listener(port: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise TokenloomError(f"port {port} of 127.0.0.1 can't be used ({error.strerror}); choose another") from error


def _wait_until_healthy(server: subprocess.Popen[bytes], url: str, place: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not answers(url):
        if server.poll() is not None or time.monotonic() > deadline:
            raise TokenloomError(f"the Prefect server did not start; {place} says why")
        time.sleep(0.1)


def page_of(url: str, path: str) -> str:
    """Return the URL of a page of Prefect's second UI.

    Args:
        url: the URL of the server's API.
        path: the page's path, such as runs/flow-run/ID.
    """
    return f"{url.removesuffix('/api')}/v2/{path}"


def answers(url: str) -> bool:
    """Return whether the server's API is healthy."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=10) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError):
        return False


def stop_server(server: subprocess.Popen[bytes]) -> None:
    """Stop a server that start_server started."""
    assert server.stdin is not None  # a pipe
    server.stdin.close()
    try:
        server.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def stop_servers() -> None:
    """Stop all servers that start_server started in this process."""
    for server in _servers:
        stop_server(server)
