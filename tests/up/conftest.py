"""The `tokenloom up` that these tests share, and a browser."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from tests.servers.browser import Page, chromium
from tests.servers.running import Up, processes_with, running_up, wait_until_gone


@pytest.fixture(scope="package")
def up(migrated: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A running `tokenloom up`, to whose API this process speaks; no test may end its processes."""
    folder, mark = tmp_path_factory.mktemp("up"), f"mark-{uuid.uuid4()}"
    with running_up(folder, mark, migrated) as (_, url), temporary_settings({PREFECT_API_URL: url}):
        assert len(processes_with(mark)) >= 3  # itself, the server, the worker
        yield Up(folder, url, mark)
    assert wait_until_gone(mark) == []
    logs = {path.name: path.read_text() for path in (folder / "up").glob("*.log")}
    assert "worker.log" in logs
    assert [name for name, log in logs.items() if "Fatal" in log or "database is locked" in log] == []


@pytest.fixture(scope="package")
def browser() -> Iterator[Page]:
    """A browser that can reach only this machine."""
    with chromium("http://127.0.0.1") as page:
        yield page
