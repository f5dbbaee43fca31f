"""A Prefect server that is slow, does not start, or dies during a build from the command line."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

import pytest
from httpx import ConnectError

from tests.builders.datasets import local_store, make_spec, write_parquet
from tests.counts import full_only
from tests.servers.prefect_servers import serving_flows, use_migrated
from tests.servers.running import wait_until
from tokenloom.errors import TokenloomError
from tokenloom.server.known_server import URL_FILE, explaining_server_errors, known_url
from tokenloom.server.up import running_server

pytestmark = pytest.mark.slow
_TRANSFORM = """
import time
from pathlib import Path

def wait(text):
    while text.startswith("last") and not Path(__file__).with_name("go").exists():
        time.sleep(0.05)
    return text
"""


def test_only_a_server_that_is_gone_is_named(flows_url: str) -> None:
    url = "http://127.0.0.1:9/api"  # nobody listens on the port of the discard protocol
    message = f"^the Prefect server {url} stopped answering: .*, which continues; "
    with pytest.raises(TokenloomError, match=message), explaining_server_errors(url):
        raise ConnectError("Connection refused")
    with pytest.raises(ConnectError), explaining_server_errors(flows_url):
        raise ConnectError("of another server")


def test_a_server_that_does_not_start_says_why_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.setenv("PREFECT_SERVER_API_PORT", "no number")  # Prefect refuses it when it is imported
    with pytest.raises(TokenloomError, match=r"did not start; .* ends: .*no number"), running_server(tmp_path / "log"):
        raise AssertionError("it runs")


def test_a_database_of_a_newer_prefect_is_named(
    migrated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_migrated(migrated, tmp_path)
    with closing(sqlite3.connect(tmp_path / "prefect.db")) as database:
        database.execute("update alembic_version set version_num = 'of a newer one'")
        database.commit()
    (tmp_path / "server.prefect").write_text("99.1.0")  # a server that starts notes its release
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    with pytest.raises(TokenloomError) as raised, running_server(tmp_path / "server.log"):
        raise AssertionError("it runs")
    made = f"its database in {tmp_path} was made by Prefect 99.1.0, and here is Prefect {version('prefect')};"
    assert made in str(raised.value)
    assert f"`PREFECT_HOME={tmp_path} prefect server database reset" in str(raised.value)


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


@pytest.mark.timeout(600)
@full_only  # Prefect retries for three minutes
def test_the_command_names_a_server_that_died_and_continues_without_it(migrated: Path, tmp_path: Path) -> None:
    (tmp_path / "lost_server_transform.py").write_text(_TRANSFORM)
    for name in ("first", "last"):
        write_parquet(tmp_path / f"{name}.parquet", [f"{name} {i}" for i in range(200)])
    transform = {"function": "lost_server_transform:wait", "version": "1"}
    sources = [{"kind": "parquet", "path": str(tmp_path / "*.parquet")}]
    spec = make_spec(tmp_path / "store", sources, documents={"transform": transform})
    (tmp_path / "spec.yaml").write_text(json.dumps(spec.model_dump(mode="json")))
    command = [sys.executable, "-m", "tokenloom", "build", str(tmp_path / "spec.yaml"), "--workers", "1"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "PREFECT_CLIENT_MAX_RETRIES": "0"}
    spills = local_store(str(tmp_path / "store"), spec.dataset).local("work/spills")
    with serving_flows(migrated, tmp_path / "home") as url:
        building = subprocess.Popen(
            command, env=environment | {"PREFECT_API_URL": url}, stderr=subprocess.PIPE, text=True
        )
        wait_until(lambda: list(spills.glob("*.json")))
    (tmp_path / "go").touch()
    _, errors = building.communicate(timeout=300)
    assert building.returncode == 1
    assert f"tokenloom: the Prefect server {url} stopped answering: " in errors
    done = subprocess.run([*command, "--direct", "--json"], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["documents"] == 400  # whether or not the first run published them before it ended
