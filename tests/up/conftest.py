"""The `tokenloom up` that these tests share, and a browser."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.browser import Page, chromium
from tests.servers.running import Up

WAITING = "tokenloom_test_waiting"  # a module with a transform that waits for a file
_TRANSFORM = """
import time
from pathlib import Path

def wait(text):
    dataset = text.rpartition(" ")[2]
    while text.startswith("second ") and not Path(__file__).with_name(f"go-{dataset}").exists():
        time.sleep(0.05)
    return text
"""


@pytest.fixture(scope="package")
def up(migrated: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A running `tokenloom up` whose runs may call the module `tokenloom_test_waiting`."""
    folder = tmp_path_factory.mktemp("up")
    (folder / f"{WAITING}.py").write_text(_TRANSFORM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("TOKENLOOM_TRANSFORMS", WAITING)
        up = Up(folder, migrated)
        up.start()
        yield up
        up.stop(by=signal.SIGTERM)
    logs = {path.name: path.read_text() for path in (folder / "up").glob("*.log")}
    assert "worker.log" in logs
    assert [name for name, log in logs.items() if "Fatal" in log or "database is locked" in log] == []


@pytest.fixture(scope="package")
def browser() -> Iterator[Page]:
    """A browser that can reach only this machine."""
    with chromium("http://127.0.0.1") as page:
        yield page
