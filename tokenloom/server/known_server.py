"""The Prefect server that commands use, where one is known, and a build as a flow on it.

Prefect's import takes a second, so this module imports it only where it is used.
"""

from __future__ import annotations

import os
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenloom.errors import TokenloomError, message_of
from tokenloom.flows.store_links import STORES, STORES_FOLDER
from tokenloom.storage.stores.local_files import read_regular
from tokenloom.wording import print_status

if TYPE_CHECKING:
    from tokenloom.spec.build_spec import BuildSpec

#: settings of the server and its clients: no telemetry
PRIVATE = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
}
HEARTBEAT_SECONDS = 30  # between the heartbeats of a run: the minimum that Prefect accepts
POOL = "tokenloom"  # the work pool
URL_FILE = "server.url"  # in the folder of `tokenloom up`: the URL of its server's API
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def prepare_environment() -> None:
    """Turn off Prefect's telemetry, and proxies for servers of this machine, here and in child processes.

    Call it before Prefect is imported. Raises ModuleNotFoundError if Prefect is not installed.
    """
    if find_spec("prefect") is None:
        raise ModuleNotFoundError("No module named 'prefect'", name="prefect")  # the command says what to install
    for name, value in PRIVATE.items():
        os.environ.setdefault(name, value)
    given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""  # the order in which libraries read them
    hosts = [host.strip() for host in given.split(",") if host.strip()]
    if "*" not in hosts:
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(dict.fromkeys([*hosts, *_LOOPBACK]))


def default_home() -> Path:
    """Return the folder of `tokenloom up` that TOKENLOOM_UP_HOME names; ~/.tokenloom if it is not set."""
    return Path(os.environ.get("TOKENLOOM_UP_HOME") or Path(os.path.expanduser("~")) / ".tokenloom")


def known_url() -> str | None:
    """Return the URL of the API of the server to use, None if no server is known.

    It is PREFECT_API_URL, else that of Prefect's active profile, else that of a `tokenloom up` on this machine.

    Raises TokenloomError if the server that the environment or the profile names does not answer.
    """
    prepare_environment()
    home, url = os.environ.get("PREFECT_HOME") or os.path.expanduser("~/.prefect"), os.environ.get("PREFECT_API_URL")
    if not url and Path(os.environ.get("PREFECT_PROFILES_PATH") or f"{home}/profiles.toml").exists():
        from prefect.settings import Settings  # a second, for those alone who have profiles

        url = Settings().api.url
    if url:
        if not answers(url):
            raise TokenloomError(
                f"the Prefect server {url} (PREFECT_API_URL or a profile) does not answer; --direct builds without one"
            )
        return url
    url = url_of_up()
    return url if url and answers(url) else None  # the file of its URL outlives a killed `up`


def url_of_up() -> str | None:
    """Return the URL of the API of a `tokenloom up` on this machine, which may have been killed; None without one."""
    try:
        return read_regular(default_home() / URL_FILE).decode()
    except OSError:
        return None


def answers(url: str) -> bool:
    """Return whether the server's API is healthy."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=10):
            return True
    except (OSError, ValueError):
        return False


def run_flow(spec: BuildSpec, url: str | None) -> dict[str, Any]:
    """Run the flow build-dataset in this process and return its result. See run_build for errors.

    Args:
        spec: a spec with absolute paths.
        url: the URL of the API of a server that answers; None for a server that Prefect starts for this process.
    """
    prepare_environment()
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")  # the terminal shows the progress
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "120")  # Prefect's 20 are few at first
    if url and url == url_of_up():
        os.environ.setdefault(STORES, str(default_home() / STORES_FOLDER))
    from prefect import tags
    from prefect.client.orchestration import get_client
    from prefect.settings import (
        PREFECT_API_URL,
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
        PREFECT_SERVER_ALLOW_EPHEMERAL_MODE,
        temporary_settings,
    )

    from tokenloom.automations import TAG
    from tokenloom.flows.build_dataset import build_dataset

    settings = {
        PREFECT_API_URL: url,
        PREFECT_SERVER_ALLOW_EPHEMERAL_MODE: url is None,
        # Nothing outlives this process that would miss a heartbeat, whose sender takes up to a second to end.
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY: HEARTBEAT_SECONDS if url else None,
    }
    if url:
        print_status(f"Prefect server {url}")
    with temporary_settings(settings), tags(TAG), explaining_server_errors(url):
        if (
            url is None
        ):  # its own server starts without SIGINT: on Ctrl-C it must outlive the flow, which reports its end
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            with get_client(sync_client=True):
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        return dict(build_dataset(spec))


@contextmanager
def explaining_server_errors(url: str | None) -> Iterator[None]:
    """Raise TokenloomError, with a next step, if the server is gone or refuses a request."""
    from httpx import HTTPStatusError, TransportError  # comes with Prefect

    try:
        yield
    except (HTTPStatusError, TransportError) as error:
        if url is None or (isinstance(error, TransportError) and answers(url)):
            raise
        raise TokenloomError(
            f"the Prefect server {url}: {message_of(error)}; start it, or set PREFECT_API_AUTH_STRING to its password, "
            "and run the same command again, which continues; --direct builds without a server"
        ) from error
