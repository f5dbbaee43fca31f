"""The Prefect server that the flows of these tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.prefect_servers import send_all, serving_flows
from tokenloom.tasks.running.steps import RETRY_SECONDS


@pytest.fixture(scope="package")
def flows_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The PREFECT_HOME of the server."""
    return tmp_path_factory.mktemp("prefect")


@pytest.fixture(scope="package")
def flows_url(migrated: Path, flows_home: Path) -> Iterator[str]:
    """The URL of the server's API."""
    with serving_flows(migrated, flows_home) as url:
        yield url


@pytest.fixture(scope="module")
def prefect_server(flows_url: str, flows_home: Path) -> Iterator[Path]:
    """The PREFECT_HOME of the server for a module's flows, which end without waiting a second for a heartbeat."""
    from prefect.settings import PREFECT_API_URL, PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    with temporary_settings({PREFECT_API_URL: flows_url, PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield flows_home
        send_all()


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry tasks of this process's flows without a delay."""
    monkeypatch.setattr("tokenloom.flows.runners._run.retry_delay_seconds", [0.1] * len(RETRY_SECONDS))
