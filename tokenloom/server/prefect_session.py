"""Running the flow from the command line: with the server in PREFECT_API_URL, else with a temporary one."""

from __future__ import annotations

import logging
from functools import partial
from http import HTTPStatus
from typing import Any

from tokenloom.cli.display import say
from tokenloom.errors import TokenloomError
from tokenloom.server.prefect_home import ensure_prefect_home
from tokenloom.server.prefect_server import HEARTBEAT_SECONDS, answers, be_private, page_of, start_server
from tokenloom.server.up_folder import default_home, running_url
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.tasks.running import progress


def run_flow(spec: BuildSpec) -> dict[str, Any]:
    """Run the flow build-dataset in this process and return its result; see run_build for errors.

    Args:
        spec: with absolute paths.
    """
    be_private()
    ensure_prefect_home()
    from prefect import tags
    from prefect.settings import PREFECT_API_URL, PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    from tokenloom.automations import TAG
    from tokenloom.flows.build_dataset import build_dataset

    _quiet_console()
    if url := known_url():
        say(f"Prefect server {url}")
    hooks: list[Any] = [*build_dataset.on_running_hooks, *([partial(_say_page, url)] if url else [])]
    # An automation of ours may wait for three heartbeats of this many seconds.
    settings = {PREFECT_API_URL: url or _temporary_url(), PREFECT_FLOWS_HEARTBEAT_FREQUENCY: HEARTBEAT_SECONDS}
    with temporary_settings(settings), tags(TAG):
        return dict(build_dataset.with_options(on_running=hooks)(spec))


def _say_page(url: str, flow: Any, run: Any, state: Any) -> None:
    say(f"this run       {page_of(url, f'runs/flow-run/{run.id}')}")


def known_url() -> str | None:
    """Return the API of the server to use: that of PREFECT_API_URL, else that of a `tokenloom up` on this machine."""
    be_private()
    ensure_prefect_home()
    from prefect.settings import PREFECT_API_URL

    if url := PREFECT_API_URL.value():
        if not answers(url):
            raise TokenloomError(f"the Prefect server {url} (PREFECT_API_URL) does not answer; --direct does without")
        _check_password(url)
        return str(url)
    url = running_url(default_home())
    return url if url and answers(url) else None


def _check_password(url: str) -> None:
    """Raise TokenloomError if the server, whose health anybody may ask for, wants another password."""
    from prefect.client.orchestration import get_client
    from prefect.exceptions import PrefectHTTPStatusError

    try:
        with get_client(sync_client=True) as client:
            client.api_version()
    except PrefectHTTPStatusError as error:
        if error.response.status_code != HTTPStatus.UNAUTHORIZED:
            raise
        raise TokenloomError(
            f"the Prefect server {url} wants a password: set PREFECT_API_AUTH_STRING to what it has in "
            "PREFECT_SERVER_API_AUTH_STRING"
        ) from error


def _temporary_url() -> str:
    say("no PREFECT_API_URL: a temporary Prefect server is started (analytics off); --direct does without")
    progress.report(progress.StepStarted("server", 0))
    try:
        return start_server()[1]
    except TokenloomError as error:
        raise TokenloomError(f"{error}; --direct does without") from error


def _quiet_console() -> None:
    """Keep Prefect's log lines, which go to its server all the same, off the terminal: progress is shown there."""
    from prefect.logging.handlers import PrefectConsoleHandler

    for name in ("", "prefect", "prefect.flow_runs", "prefect.task_runs"):
        for handler in logging.getLogger(name).handlers:
            if isinstance(handler, PrefectConsoleHandler):
                handler.setLevel(logging.CRITICAL + 1)
