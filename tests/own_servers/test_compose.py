"""compose.yaml without containers: its commands, environments and health checks, on this machine's ports.

The database is a PostgreSQL on a socket; moto's server stands in for MinIO.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from prefect.deployments import run_deployment
from prefect.settings import PREFECT_API_URL, temporary_settings

from tests.builders.datasets import build
from tests.counts import full_only
from tests.servers import compose
from tests.servers.postgres import Postgres
from tests.servers.running import parameters
from tests.servers.s3_server import BUCKET, HEADERS, keys, s3_server
from tokenloom.spec.build_spec import BuildSpec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), full_only]

_STOP_SECONDS = 60  # the worker's stop_grace_period


class Machine(NamedTuple):
    """The services of compose.yaml, and what replaces the hosts, ports and folders of their containers."""

    folder: Path
    stands_for: dict[str, str]

    def said(self, text: str) -> str:
        """Return a text of a service in which hosts, ports and passwords are those of this machine."""
        for theirs, ours in self.stands_for.items():
            text = text.replace(theirs, ours)
        return text

    def popen(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        """Start a command in the environment of a service."""
        service = compose.services()[name]
        asked = compose.environment_of_image() | service.get("environment", {})
        ours = {variable: os.environ[variable] for variable in ("HOME", "LANG", "TMPDIR") if variable in os.environ}
        path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "NO_PROXY": "127.0.0.1"}
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [self.said(word) for word in command],
                cwd=self.folder,
                env=ours | path | {variable: self.said(value) for variable, value in asked.items()} | self._ports(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _ports(self) -> dict[str, str]:
        """Return the settings of the ports that containers need not choose."""
        return {
            "UVICORN_PORT": self.stands_for[":4200"][1:],
            "PREFECT_WORKER_WEBSERVER_PORT": self.stands_for[":8080"][1:],
        }

    def complete(self, name: str) -> None:
        """Run a service that must end with 0."""
        process = self.popen(name, compose.command_of(compose.services()[name]))
        assert process.wait(120) == 0, (self.folder / f"{name}.log").read_text()

    @contextmanager
    def serving(self, name: str) -> Iterator[None]:
        """Run a service, which is healthy, while the block runs; it ends by SIGTERM."""
        service = compose.services()[name]
        process = self.popen(name, compose.command_of(service))
        try:
            deadline = time.monotonic() + 120
            while self.popen(name, compose.health_check_of(service)).wait(60):
                assert process.poll() is None and time.monotonic() < deadline, (self.folder / f"{name}.log").read_text()
                time.sleep(1)
            yield
            process.terminate()
            process.wait(_STOP_SECONDS)
        finally:
            process.kill()
            process.wait()


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


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture
def machine(postgres: Postgres, tmp_path: Path) -> Callable[[str], Machine]:
    """Return the services with an object store at a URL."""
    server, health = _free_port(), _free_port()
    url = "postgresql+asyncpg://prefect:${POSTGRES_PASSWORD}@database:5432/prefect"

    def at(store: str) -> Machine:
        stands_for = {
            url: postgres.create("composed"),
            "http://minio:9000": store,
            "${MINIO_PASSWORD:?write it into .env}": "a-secret",
            "server:4200": "127.0.0.1:4200",
            ":4200": f":{server}",
            ":8080": f":{health}",
            "0.0.0.0": "127.0.0.1",
            "/home/loom/.prefect": str(tmp_path / "prefect"),
            "/data": str(tmp_path),
        }
        return Machine(tmp_path, stands_for)

    return at


def test_the_services_build_into_their_object_store(machine: Callable[[str], Machine], tmp_path: Path) -> None:
    with ExitStack() as stack:
        store = stack.enter_context(s3_server())
        httpx.delete(f"{store}/{BUCKET}", headers=HEADERS, trust_env=False).raise_for_status()
        services = machine(store)
        stack.enter_context(services.serving("server"))
        services.complete("deployments")
        services.complete("bucket")
        services.complete("bucket")  # after a restart of all of it
        stack.enter_context(services.serving("worker"))
        asked = parameters(tmp_path, "news")
        direct = build(BuildSpec.model_validate(asked["spec"] | {"store": str(tmp_path / "direct")}))
        asked["spec"]["store"] = "s3://corpora/store"
        api = services.said(compose.services()["worker"]["environment"]["PREFECT_API_URL"])
        answers = [
            httpx.get(f"{api}/admin/version", headers={name: "http://evil.test"}, trust_env=False).status_code
            for name in ("host", "origin")
        ]
        assert answers == [403, 403]
        with temporary_settings({PREFECT_API_URL: api}):
            run: Any = run_deployment("build-dataset/build-dataset", parameters=asked, timeout=150, poll_interval=1)
        assert run.state.is_completed(), run.state
        assert f"store/news/versions/{direct.version}/manifest.json" in keys(store, "store/")
