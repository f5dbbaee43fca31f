"""A server on a real PostgreSQL, as in docs/guides/clusters.md: deployments, a worker and a build."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from prefect.deployments import run_deployment
from prefect.settings import PREFECT_API_URL, temporary_settings

from tests.builders.datasets import build
from tests.servers.postgres import Postgres, run_program
from tests.servers.prefect_servers import prefect_worker
from tests.servers.running import artifact, event, parameters
from tokenloom.server.known_server import PRIVATE
from tokenloom.server.up import running_server
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.versions.published import published_versions
from tokenloom.storage.versions.references import dataset_store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Team(NamedTuple):
    """A server on PostgreSQL after one build."""

    folder: Path
    postgres: Postgres
    asked: dict[str, Any]
    run: Any


@contextmanager
def serving(folder: Path, database: str) -> Iterator[str]:
    """Run a Prefect server on a database; yield the URL of its API."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in PRIVATE.items():
            patch.setenv(name, value)
        patch.setenv("PREFECT_HOME", str(folder / "prefect"))
        patch.setenv("PREFECT_SERVER_DATABASE_CONNECTION_URL", database)
        with running_server(folder / "server.log") as (_, url):
            assert (folder / "server.prefect").read_text() == version("prefect")  # for the message of an older release
            patch.delenv("PREFECT_SERVER_DATABASE_CONNECTION_URL")  # nothing else needs it
            patch.setenv("PREFECT_API_URL", url)
            with temporary_settings({PREFECT_API_URL: url}):
                yield url


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
