"""A Prefect server on this machine's loopback interface, which ends with the process that started it."""

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
#: for the server and all that talks to it: nothing is told to anybody, and there is one server
PRIVATE = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",  # a client without a URL fails, and starts no server of its own
}

POOL = "tokenloom"  # the work pool
WORKER = "up"  # name of the worker of `tokenloom up`
HEARTBEAT_SECONDS = 30  # how often a run says that it lives: the least that Prefect takes

_servers: list[subprocess.Popen[bytes]] = []  # kept, so that their standard input stays open


def be_private() -> None:
    """Let Prefect, which is not imported yet, tell nobody anything, in this process and those that it starts."""
    for name, value in PRIVATE.items():
        os.environ.setdefault(name, value)


def start_server(port: int = 0, log: IO[bytes] | None = None) -> tuple[subprocess.Popen[bytes], str]:
    """Start a server; return its process and the URL of its API once it answers.

    Prefect can start one by itself, but that one is left behind by a program that is killed, is hit by the Ctrl-C that
    goes to a terminal's whole group, and may print tracebacks when it stops.

    Args:
        port: of 127.0.0.1; 0 for a free one.
        log: gets what the server prints.

    Raises:
        TokenloomError: the port is taken, or the server does not start.
    """
    output = log or subprocess.DEVNULL
    with _listener(port) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
        server = subprocess.Popen(
            [sys.executable, "-m", "tokenloom.server.server_process", str(listener.fileno())],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=[listener.fileno()],
            start_new_session=True,
            env=os.environ | {"PREFECT_SERVER_UI_API_URL": url},  # Prefect knows no port of an inherited socket
        )
    try:
        _wait_until_healthy(server, url, "`prefect server start`" if log is None else log.name)
    except BaseException:
        server.kill()
        server.wait()
        raise
    _servers.append(server)
    return server, url


def _listener(port: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise TokenloomError(f"port {port} of 127.0.0.1 can't be used ({error.strerror}): choose another") from error


def _wait_until_healthy(server: subprocess.Popen[bytes], url: str, place: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not answers(url):
        if server.poll() is not None or time.monotonic() > deadline:
            raise TokenloomError(f"no Prefect server could be started; {place} says why")
        time.sleep(0.1)


def page_of(url: str, path: str) -> str:
    """Return the address of a page of Prefect's second UI.

    Args:
        url: of the server's API.
        path: of the page, such as runs/flow-run/ID.
    """
    return f"{url.removesuffix('/api')}/v2/{path}"


def answers(url: str) -> bool:
    """Return whether the API of a server is healthy."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=10) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError):
        return False


def stop_server(server: subprocess.Popen[bytes]) -> None:
    """End a server that start_server started."""
    assert server.stdin is not None  # a pipe
    server.stdin.close()
    try:
        server.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def stop_servers() -> None:
    """End all servers that start_server started in this process."""
    for server in _servers:
        stop_server(server)
