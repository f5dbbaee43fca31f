"""The PostgreSQL that these tests share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.postgres import Postgres


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
