"""Shared setup of tests of Prefect: an up-to-date database, and a server for flows in this process."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from filelock import FileLock

from tokenloom.server.known_server import PRIVATE
from tokenloom.server.up import running_server

_NAME = "prefect.db"  # in PREFECT_HOME
#: for a server: what it does from time to time, it does each second or two, not each five to sixty
SOON = {
    "PREFECT_SERVER_EVENTS_PROACTIVE_GRANULARITY": "PT1S",
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_FLUSH_INTERVAL": "0.5",
    "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "2",
}


def migrated_home(folder: Path) -> Path:
    """Return a PREFECT_HOME below `folder` whose database no server has used; created once.

    A server makes its tables by all of Prefect's hundred migrations, for some seven seconds of a processor.
    """
    home = folder / "migrated"
    with FileLock(folder / "migrated.lock"):
        if not home.exists():
            environment = os.environ | PRIVATE | {"PREFECT_HOME": str(folder / "migrating")}
            command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            (folder / "migrating").rename(home)
    return home


def use_migrated(migrated: Path, home: Path) -> None:
    """Give a PREFECT_HOME that has no database yet a copy of a migrated one."""
    home.mkdir(parents=True, exist_ok=True)
    assert not (home / _NAME).exists()
    with closing(sqlite3.connect(migrated / _NAME)) as source, closing(sqlite3.connect(home / _NAME)) as target:
        source.backup(target)


@contextmanager
def serving_flows(migrated: Path, home: Path) -> Iterator[str]:
    """Run a server without pages, schedules and kinds of blocks that nobody saved; yield the URL of its API."""
    use_migrated(migrated, home)
    settings = PRIVATE | SOON | {"PREFECT_HOME": str(home), "PREFECT__SERVER_EPHEMERAL": "1"}
    settings["PREFECT_SERVER_API_BLOCKS_REGISTER_ON_START"] = "false"
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in settings.items():
                patch.setenv(name, value)
            _, url = stack.enter_context(running_server(home / "server.log"))
        yield url


def recorded_text(home: Path) -> str:
    """Return all that is in the database of a server, once this process has sent its logs and events."""
    send_all()
    time.sleep(1.5)  # more than it takes to flush events
    with closing(sqlite3.connect(home / _NAME)) as database:
        return "\n".join(database.iterdump())


def send_all() -> None:
    """Send the logs and events of this process to its server now, not with the next batch."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    APILogWorker.drain_all()
    EventsWorker.drain_all()
