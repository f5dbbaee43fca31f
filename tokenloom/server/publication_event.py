"""Emit the event of a version that a person published, on the Prefect server on which builds emit theirs.

A publication by hand is not a flow run, and most machines on which it runs have no server, so Prefect, whose import
takes a second, is imported only if a server may be configured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenloom.console import print_status
from tokenloom.errors import TokenloomError, message_of
from tokenloom.server.prefect_session import known_url, may_have_server


def announce(dataset: str, result: Mapping[str, Any]) -> None:
    """Emit `tokenloom.dataset.published` if there is a server; a failure is a line on stderr, as the version is there.

    Args:
        dataset: its name.
        result: see tasks.candidates.described.
    """
    if not may_have_server():
        return
    import httpx
    from prefect.settings import PREFECT_API_URL, temporary_settings

    try:
        if url := known_url():
            with temporary_settings({PREFECT_API_URL: url}):
                _send(dataset, result)
    except (TokenloomError, httpx.HTTPError) as error:
        print_status(f"the version is published, but Prefect got no event: {message_of(error)}")


def _send(dataset: str, result: Mapping[str, Any]) -> None:
    from tokenloom.flows.runs.events import send_published

    send_published(dataset, result)
