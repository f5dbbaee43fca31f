"""A server on a real PostgreSQL, as in docs/guides/teams.md: deployments, a worker, a build, and a restored dump."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from prefect.client.orchestration import get_client
from prefect.deployments import run_deployment
from prefect.settings import PREFECT_API_URL, temporary_settings

from tests.builders.datasets import build
from tests.counts import full_only
from tests.servers.prefect_servers import prefect_worker
from tests.servers.running import artifact, event, parameters
from tokenloom.server.prefect_server import PRIVATE, start_server, stop_server
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.versions.published import published_versions
from tokenloom.storage.versions.references import dataset_store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
# PostgreSQL refuses to run as root
AS_NOBODY: dict[str, Any] = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.getuid() == 0 else {}


class Postgres:
    """A PostgreSQL for this test, which listens only on a socket in its folder."""

    def __init__(self, programs: Path, folder: Path):
        self.programs = programs
        self.folder = folder

    def start(self) -> None:
        """Create the cluster and start it."""
        options = f"-c listen_addresses='' -c unix_socket_directories={self.folder} -c fsync=off"
        if AS_NOBODY:
            shutil.chown(self.folder, AS_NOBODY["user"])
        self.control("initdb", "--auth=trust", "--encoding=UTF8", "--username=admin")
        self.control("pg_ctl", "start", "--wait", f"--log={self.folder}/log", f"--options={options}")

    def stop(self) -> None:
        """Stop it and end its sessions."""
        self.control("pg_ctl", "stop", "--wait", "--mode=immediate")

    def create(self, database: str) -> str:
        """Create a database owned by `prefect`, which is not a superuser; return its URL for Prefect."""
        self.run("createdb", "--owner=prefect", database, user="admin")
        return f"postgresql+asyncpg://prefect@/{database}?host={self.folder}"

    def run(self, program: str, *arguments: str, user: str = "prefect") -> str:
        """Run a client; return its output."""
        environment = os.environ | {"PGHOST": str(self.folder), "PGUSER": user}
        return run_program([str(self.programs / program), *arguments], env=environment)

    def control(self, program: str, *arguments: str) -> None:
        """Run a server program on the cluster."""
        command = [str(self.programs / program), f"--pgdata={self.folder}/data", *arguments]
        run_program(command, cwd=self.folder, **AS_NOBODY)


class Team(NamedTuple):
    """A server on PostgreSQL after one build."""

    folder: Path
    postgres: Postgres
    asked: dict[str, Any]
    run: Any


def run_program(command: list[str], **options: Any) -> str:
    """Run a program that must succeed; return its output."""
    with tempfile.TemporaryFile("w+") as output:  # a pipe would stay open as long as the server that pg_ctl starts
        done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, timeout=120, check=False, **options)
        output.seek(0)
        text = output.read()
    assert done.returncode == 0, text
    return text


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """A running PostgreSQL."""
    initdb = shutil.which("initdb")
    found = [Path(initdb)] if initdb else sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("needs PostgreSQL's programs (Debian: apt-get install postgresql)")
    with tempfile.TemporaryDirectory(prefix="pg") as folder:  # the path of a socket must be short
        server = Postgres(found[-1].resolve().parent, Path(folder))
        server.start()
        try:
            server.run("createuser", "prefect", user="admin")
            yield server
        finally:
            server.stop()


@contextmanager
def serving(folder: Path, database: str) -> Iterator[str]:
    """Run a Prefect server on a database; yield the URL of its API."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in PRIVATE.items():
            patch.setenv(name, value)
        patch.setenv("PREFECT_HOME", str(folder / "prefect"))
        patch.setenv("PREFECT_SERVER_DATABASE_CONNECTION_URL", database)
        server, url = start_server(log=folder / "server.log")
        patch.delenv("PREFECT_SERVER_DATABASE_CONNECTION_URL")  # nothing else needs it
        patch.setenv("PREFECT_API_URL", url)
        try:
            with temporary_settings({PREFECT_API_URL: url}):
                yield url
        finally:
            stop_server(server)


@pytest.fixture(scope="module")
def team(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    """A team's server: two deployments and a build that the API triggered."""
    folder = tmp_path_factory.mktemp("team")
    asked = parameters(folder, "news")
    with serving(folder, postgres.create("prefect")):
        deployed = run_program([sys.executable, "-m", "tokenloom", "deploy"], cwd=folder)
        assert "prefect worker start --pool tokenloom" in deployed
        with prefect_worker(folder, dict(os.environ), "--install-policy", "never"):  # as `deploy` prints
            run = run_deployment("build-dataset/build-dataset", parameters=asked, timeout=120, poll_interval=1)
        yield Team(folder, postgres, asked, run)


def test_a_build_through_the_server_has_the_version_of_a_direct_build(team: Team, tmp_path: Path) -> None:
    assert team.run.state.is_completed(), team.run.state
    direct = build(BuildSpec.model_validate(team.asked["spec"] | {"store": str(tmp_path)}))
    assert published_versions(dataset_store(str(team.folder / "store"), "news")) == [direct.version]
    assert event("tokenloom.dataset.published", "news")["version"] == direct.version
    assert f"## news {direct.version}" in artifact("news-summary").data


def test_the_role_of_the_server_is_not_a_superuser_and_created_its_extension(team: Team) -> None:
    query = "SELECT rolsuper, extname FROM pg_roles, pg_extension WHERE rolname = 'prefect' AND extname = 'pg_trgm'"
    assert team.postgres.run("psql", "-Atc", query, "prefect") == "f|pg_trgm\n"


@full_only
def test_a_server_on_a_restored_dump_has_the_earlier_runs(team: Team) -> None:
    dump = str(team.folder / "prefect.dump")
    team.postgres.run("pg_dump", "--format=custom", f"--file={dump}", "prefect")
    database = team.postgres.create("restored")
    team.postgres.run("pg_restore", "--exit-on-error", "--no-owner", "--dbname=restored", dump)
    with serving(team.folder, database), get_client(sync_client=True) as client:
        run = client.read_flow_run(team.run.id)
        assert run.state is not None and run.state.is_completed()
        assert run.parameters == team.run.parameters
        assert artifact("news-summary").data.startswith("## news ")
        assert client.read_deployment_by_name("build-dataset/build-dataset").id == team.run.deployment_id
