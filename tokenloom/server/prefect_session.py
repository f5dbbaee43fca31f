"""Run the flow from the command line: on the server in PREFECT_API_URL, of `tokenloom up`, or on a temporary one.

A publication by hand emits its event on the same server. It is not a flow run, and most machines have no server, so
Prefect, whose import takes a second, is imported only if a server may be configured.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

from tokenloom.console import print_status
from tokenloom.errors import SpecError, TokenloomError, message_of
from tokenloom.flows.runs.store_links import STORES, STORES_FOLDER
from tokenloom.server.prefect_server import (
    HEARTBEAT_SECONDS,
    TEMPORARY,
    StartingServer,
    answers,
    page_of,
    prepare_environment,
)
from tokenloom.server.up import default_home, running_url
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.spec.runner import DaskRunner, RayRunner
from tokenloom.storage.stores.local_files import read_regular
from tokenloom.tasks.running import progress

#: files of the current folder with settings of Prefect, and what they then contain
_SETTINGS_FILES = {".env": b"prefect_", "prefect.toml": b"", "pyproject.toml": b"tool.prefect"}


def run_flow(spec: BuildSpec) -> dict[str, Any]:
    """Run the flow build-dataset in this process and return its result. See run_build for errors.

    Starting a temporary server takes seconds, so one is started only if there is something to build.

    Args:
        spec: a spec with absolute paths.
    """
    from tokenloom.flows.direct import find_published

    prepare_environment()
    url = known_url() if may_have_server() else None
    if url:
        print_status(f"Prefect server {url}")
        if url == running_url(default_home()):
            os.environ.setdefault(STORES, str(default_home() / STORES_FOLDER))
    elif published := find_published(spec):
        return published.to_json()
    starting = None if url else _start_temporary(spec)  # it starts while Prefect and the flow are imported
    from prefect import tags
    from prefect.settings import PREFECT_API_URL, PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    from tokenloom.automations import TAG
    from tokenloom.flows.build_dataset import build_dataset

    _quiet_console()
    hooks: list[Any] = [*build_dataset.on_running_hooks, *([partial(_print_page, url)] if url else [])]
    api = _url_of(starting) if starting else str(url)
    # A temporary server misses no heartbeats, and Prefect's sender takes up to a second to end with its run.
    settings = {PREFECT_API_URL: api, PREFECT_FLOWS_HEARTBEAT_FREQUENCY: HEARTBEAT_SECONDS if url else None}
    with temporary_settings(settings), tags(TAG), _naming_lost_server(api):
        return dict(build_dataset.with_options(on_running=hooks)(spec))


@contextmanager
def _naming_lost_server(url: str) -> Iterator[None]:
    """Raise TokenloomError for a request that fails in the block because the server is gone."""
    from httpx import TransportError  # comes with Prefect

    try:
        yield
    except TransportError as error:
        if answers(url):
            raise
        raise TokenloomError(
            f"the Prefect server {url} stopped answering: {message_of(error)}; start it and run the same command "
            "again, which continues; --direct builds without a server"
        ) from error


def _print_page(url: str, flow: Any, run: Any, state: Any) -> None:
    print_status(f"this run       {page_of(url, f'runs/flow-run/{run.id}')}")


def may_have_server() -> bool:
    """Return whether Prefect's settings may name a server, or `tokenloom up` runs here, without importing Prefect."""
    if "prefect" in sys.modules:
        return True
    home = Path(os.environ.get("PREFECT_HOME") or os.path.expanduser("~/.prefect"))
    profiles = Path(os.environ.get("PREFECT_PROFILES_PATH") or home / "profiles.toml")
    return (
        any(os.environ.get(name) for name in ("PREFECT_API_URL", "PREFECT_PROFILE"))
        or running_url(default_home()) is not None
        or profiles.exists()
        or any(_mentions(Path(name), word) for name, word in _SETTINGS_FILES.items())
    )


def _mentions(file: Path, word: bytes) -> bool:
    try:
        return word in read_regular(file).lower()
    except FileNotFoundError:
        return False
    except OSError:
        return True  # Prefect says why


def known_url() -> str | None:
    """Return the URL of the API to use: PREFECT_API_URL, else that of a `tokenloom up` on this machine, else None.

    Raises TokenloomError if PREFECT_API_URL does not answer, or the server requires another password.
    """
    prepare_environment()
    from prefect.settings import PREFECT_API_URL

    if url := PREFECT_API_URL.value():
        if not answers(url):
            raise TokenloomError(
                f"the Prefect server {url} (PREFECT_API_URL) does not answer; --direct builds without a server"
            )
    elif not ((url := running_url(default_home())) and answers(url)):
        return None
    _check_password(url)
    return str(url)


def heartbeat_seconds(url: str) -> int:
    """Return the interval between the heartbeats of runs on a server, as far as this process knows it.

    Args:
        url: the URL of the server's API.
    """
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY

    is_of_up = url == running_url(default_home())
    configured = HEARTBEAT_SECONDS if is_of_up else PREFECT_FLOWS_HEARTBEAT_FREQUENCY.value() or 0
    return max(configured, HEARTBEAT_SECONDS)


def _check_password(url: str) -> None:
    """Raise TokenloomError if the server refuses our password. Its health page needs none."""
    from prefect.client.orchestration import get_client
    from prefect.exceptions import PrefectHTTPStatusError
    from prefect.settings import PREFECT_API_URL, temporary_settings

    try:
        with temporary_settings({PREFECT_API_URL: url}), get_client(sync_client=True) as client:
            client.api_version()
    except PrefectHTTPStatusError as error:
        if error.response.status_code != HTTPStatus.UNAUTHORIZED:
            raise
        raise TokenloomError(
            f"the Prefect server {url} requires a password: set PREFECT_API_AUTH_STRING to the value of "
            "the server's PREFECT_SERVER_API_AUTH_STRING"
        ) from error


def _start_temporary(spec: BuildSpec) -> StartingServer:
    """Start a server that ends with this process; return before it answers."""
    if isinstance(spec.runner, DaskRunner | RayRunner) and spec.runner.address:
        raise SpecError(
            f"runner.address: the workers of {spec.runner.address} outlive a temporary Prefect server, and would send "
            "to it again in the next build; set PREFECT_API_URL to a server that they reach"
        )
    print_status(
        "PREFECT_API_URL is not set: starting a temporary Prefect server (analytics off), which takes 3 to 30 s, the "
        "first time longest; --direct builds without one, `tokenloom up` keeps one running"
    )
    progress.report(progress.StepStarted("server", 0))
    return StartingServer(settings=TEMPORARY)


def _url_of(starting: StartingServer) -> str:
    """Return the URL of a temporary server's API once it answers."""
    try:
        url = starting.wait()[1]
    except TokenloomError as error:
        raise TokenloomError(f"{error}; --direct builds without a server") from error
    _check_password(url)
    return url


def _quiet_console() -> None:
    """Keep Prefect's log lines off the terminal, which shows progress. They still go to the server."""
    from prefect.logging.handlers import PrefectConsoleHandler

    for name in ("", "prefect", "prefect.flow_runs", "prefect.task_runs"):
        for handler in logging.getLogger(name).handlers:
            if isinstance(handler, PrefectConsoleHandler):
                handler.setLevel(logging.CRITICAL + 1)
