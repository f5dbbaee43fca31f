"""PostgreSQL for tests, which listens only on a socket in its folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

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


def run_program(command: list[str], **options: Any) -> str:
    """Run a program that must succeed; return its output."""
    with tempfile.TemporaryFile("w+") as output:  # a pipe would stay open as long as the server that pg_ctl starts
        done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, timeout=120, check=False, **options)
        output.seek(0)
        text = output.read()
    assert done.returncode == 0, text
    return text
