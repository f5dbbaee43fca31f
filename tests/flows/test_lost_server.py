"""A Prefect server that is slow, does not start, or dies during a build from the command line."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

import pytest
from filelock import FileLock, Timeout
from httpx import Client, ConnectError

from tests.builders.datasets import local_store, make_spec, write_parquet
from tests.counts import full_only
from tests.servers.prefect_servers import serving_flows, use_migrated
from tests.servers.running import wait_until
from tokenloom.errors import TokenloomError
from tokenloom.server.prefect_server import StartingServer, prepare_environment
from tokenloom.server.prefect_session import _naming_lost_server, may_have_server

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
    with pytest.raises(TokenloomError, match=message), _naming_lost_server(url):
        raise ConnectError("Connection refused")
    with pytest.raises(ConnectError), _naming_lost_server(flows_url):
        raise ConnectError("of another server")


def test_a_server_answers_without_the_delay_of_unset_tcp_nodelay(flows_url: str) -> None:
    def seconds(client: Client) -> float:
        start = time.perf_counter()
        client.get(f"{flows_url}/admin/version").raise_for_status()
        return time.perf_counter() - start

    with Client() as client:
        assert min(seconds(client) for _ in range(20)) < 0.035  # else every answer waits 40 ms for an acknowledgment


def test_a_server_that_does_not_start_says_why_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    server = StartingServer(settings={"PREFECT_SERVER_API_PORT": "no number"})  # Prefect refuses it when it is imported
    other = FileLock(tmp_path / "tokenloom-start.lock")  # of another first build: both would migrate one database
    with pytest.raises(Timeout):
        other.acquire(timeout=0)
    with pytest.raises(
        TokenloomError, match=r"did not start: it ended with exit code 1; .*ValidationError: .*no number"
    ):
        server.wait()
    other.acquire(timeout=0)


@pytest.mark.parametrize(
    ("noted", "maker", "advice"),
    [("99.1.0", "Prefect 99.1.0", "prefect==99.1.0"), ("3.0.0", "a newer Prefect", "--upgrade prefect")],
)
def test_a_database_of_a_newer_prefect_is_named_with_its_release(
    noted: str, maker: str, advice: str, migrated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    use_migrated(migrated, home)
    with closing(sqlite3.connect(home / "prefect.db")) as database:
        database.execute("update alembic_version set version_num = 'of a newer one'")
        database.commit()
    (home / "tokenloom-prefect-release").write_text(noted)
    monkeypatch.setenv("PREFECT_HOME", str(home))
    with pytest.raises(TokenloomError) as raised:
        StartingServer().wait()
    message = str(raised.value)
    assert f"its database in {home} was made by {maker}, and here is Prefect {version('prefect')};" in message
    assert f"`pip install {advice}`" in message and f"`PREFECT_HOME={home} prefect server database reset" in message


def test_prefect_is_imported_first_only_if_its_settings_may_name_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PREFECT_API_URL", "PREFECT_PROFILE", "PREFECT_PROFILES_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "PREFECT_HOME", "TOKENLOOM_UP_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "prefect")
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["prefect"]\n')
    assert not may_have_server()
    for name in ("pyproject.toml", "prefect.toml", ".env", "profiles.toml"):
        (tmp_path / name).write_text('[tool.prefect.api]\nPREFECT_API_URL = "http://127.0.0.1:9/api"\n')
        assert may_have_server(), name
        (tmp_path / name).unlink()
    monkeypatch.setenv("PREFECT_PROFILE", "local")
    assert may_have_server()


@pytest.mark.parametrize("proxy", ["socks://127.0.0.1:9", "what://127.0.0.1:9"])
def test_a_proxy_that_prefect_cant_use_is_named(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "example.org")
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(TokenloomError, match=r"Prefect can't use a proxy .*ALL_PROXY.*(socks|what).* unset it"):
        prepare_environment()
    assert os.environ["no_proxy"] == "example.org,127.0.0.1,localhost,::1"


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
