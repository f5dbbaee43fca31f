"""A Prefect server that does not start, stops answering, or is one of several that a command could use."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from httpx import ConnectError

from tests.servers.prefect_servers import use_migrated
from tokenloom.errors import TokenloomError
from tokenloom.server.known_server import URL_FILE, explaining_server_errors, known_url
from tokenloom.server.up import running_server

pytestmark = pytest.mark.slow


def test_only_a_server_that_is_gone_is_named(flows_url: str) -> None:
    url = "http://127.0.0.1:9/api"  # nobody listens on the port of the discard protocol
    message = f"^the Prefect server {url}: Connection refused; .*, which continues; "
    with pytest.raises(TokenloomError, match=message), explaining_server_errors(url):
        raise ConnectError("Connection refused")
    with pytest.raises(ConnectError), explaining_server_errors(flows_url):
        raise ConnectError("of another server")


def test_a_server_that_does_not_start_says_why_such_as_a_database_of_a_newer_prefect(
    migrated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_migrated(migrated, tmp_path)
    with closing(sqlite3.connect(tmp_path / "prefect.db")) as database:
        database.execute("update alembic_version set version_num = 'of a newer one'")
        database.commit()
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    with pytest.raises(TokenloomError) as raised, running_server(tmp_path / "server.log"):
        raise AssertionError("it runs")
    assert "Can't locate revision identified by 'of a newer one'" in str(raised.value)
    assert f"made its database in {tmp_path}, run `pip install --upgrade prefect`" in str(raised.value)


def test_the_known_server_is_that_of_the_environment_then_the_profile_then_up(
    flows_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PREFECT_API_URL", "PREFECT_PROFILE", "PREFECT_PROFILES_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "PREFECT_HOME", "TOKENLOOM_UP_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    nowhere = "http://127.0.0.1:9/api"  # nobody listens on the port of the discard protocol
    assert known_url() is None
    (tmp_path / URL_FILE).write_text(nowhere)
    assert known_url() is None, "its `up` was killed"
    (tmp_path / URL_FILE).write_text(flows_url)
    assert known_url() == flows_url
    profiles = f'active = "a"\n[profiles.a]\nPREFECT_API_URL = "{nowhere}"\n[profiles.b]\n'
    (tmp_path / "profiles.toml").write_text(profiles)
    with pytest.raises(TokenloomError, match=f"{nowhere} .* does not answer"):
        known_url()
    monkeypatch.setenv("PREFECT_PROFILE", "b")
    assert known_url() == flows_url
    monkeypatch.setenv("PREFECT_API_URL", nowhere)
    with pytest.raises(TokenloomError, match=f"{nowhere} .* does not answer"):
        known_url()
