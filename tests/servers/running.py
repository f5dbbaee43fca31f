"""A running `tokenloom up`, and requests to its server."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from prefect.client.schemas.objects import FlowRun
from prefect.settings import PREFECT_API_URL, temporary_settings

from tests.builders.datasets import make_spec, write_parquet
from tests.servers.prefect_servers import SOON, use_migrated
from tests.servers.processes import wait_until


def processes_with(mark: str) -> list[int]:
    """Return the processes whose environment contains `mark`, without this one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes() and int(folder.name) != os.getpid():
                found.append(int(folder.name))
        except OSError:  # it has ended, or belongs to another user
            continue
    return found


def wait_until_gone(mark: str) -> list[str]:
    """Return the command lines of a mark's processes that are left after a minute."""
    deadline = time.monotonic() + 60
    while processes_with(mark) and time.monotonic() < deadline:
        time.sleep(0.2)
    return [command_line(pid) for pid in processes_with(mark)]


def command_line(pid: int) -> str:
    """Return the command line of a process, "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


@contextmanager
def running_up(folder: Path, mark: str, migrated: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `tokenloom up` on a free port; yield its process and the URL of the API; end it with Ctrl-C if it still runs.

    Args:
        folder: where it runs; its data are in `up` below.
        mark: is set in the environment of all its processes.
        migrated: the PREFECT_HOME whose database it starts with, if it has none of an earlier one.
        options: further arguments of the command.
    """
    if not (folder / "up").exists():
        use_migrated(migrated, folder / "up")
    environment = os.environ | SOON | {"TOKENLOOM_TEST_MARK": mark, "TOKENLOOM_UP_HOME": str(folder / "up")}
    environment.pop("PREFECT_API_URL", None)
    up = subprocess.Popen(
        [sys.executable, "-m", "tokenloom", "up", "--port", "0", *options],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    try:
        assert up.stdout is not None
        printed = []
        for line in up.stdout:
            printed.append(line)
            if "Ctrl-C" in line:
                break
        found = re.search(r"http://127\.0\.0\.1:\d+", "".join(printed))
        assert found, "".join(printed)
        yield up, found[0] + "/api"
    finally:
        was_running = up.poll() is None
        up.send_signal(signal.SIGINT)
        rest, _ = up.communicate(timeout=180)
    if was_running:
        assert up.returncode == 0, rest
        assert "stopping" in rest


class Up:
    """A `tokenloom up` that a test may stop and start again; this process uses its API while it runs.

    Attributes:
        folder: where it runs.
        mark: is in the environment of its processes.
        url: of its API.
        process: its own.
    """

    def __init__(self, folder: Path, migrated: Path) -> None:
        self.folder = folder
        self.mark = f"mark-{uuid4()}"
        self._migrated = migrated
        self._running = ExitStack()

    def start(self) -> None:
        """Start it."""
        self.process, self.url = self._running.enter_context(running_up(self.folder, self.mark, self._migrated))
        self._running.enter_context(temporary_settings({PREFECT_API_URL: self.url}))

    def stop(self, by: signal.Signals = signal.SIGINT) -> None:
        """End it by a signal, if it still runs; none of its processes is left."""
        self.process.send_signal(by)
        self.process.wait(180)
        self._running.close()
        left = wait_until_gone(self.mark)
        assert not left, left


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command that looks for a running `tokenloom up`."""
    environment = os.environ | {"TOKENLOOM_UP_HOME": str(folder / "up")}
    environment.pop("PREFECT_API_URL", None)
    return subprocess.run(
        [sys.executable, "-m", "tokenloom", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def parameters(folder: Path, name: str, workers: int = 0, **fields: Any) -> dict[str, Any]:
    """Return the parameters of a run that builds dataset `name`, with this many worker processes."""
    write_parquet(folder / "input" / "a.parquet", [f"text {i} of {name}" for i in range(200)])
    sources = [{"kind": "parquet", "path": str(folder / "input" / "a.parquet")}]
    spec = make_spec(folder / "store", sources, **fields).model_dump(mode="json")
    return {"spec": spec | {"dataset": name, "runner": {"kind": "process", "workers": workers}}}


def artifact(key: str) -> Any:
    """Return the newest artifact of a key."""
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=[key])))
    return max(found, key=lambda each: each.created)  # type: ignore[arg-type, return-value]


def event(name: str, dataset: str) -> dict[str, Any]:
    """Return the payload of a dataset's only event, once the server has it."""
    deadline = time.monotonic() + 120
    wanted = {"filter": {"event": {"name": [name]}, "resource": {"id": [f"tokenloom.dataset.{dataset}"]}}}
    while time.monotonic() < deadline:
        with get_client(sync_client=True) as client:
            found = client.request("POST", "/events/filter", json=wanted).json()["events"]
        if found:
            assert len(found) == 1
            return dict(found[0]["payload"])
        time.sleep(0.5)
    raise AssertionError(f"no event {name} of {dataset}")


def log_lines(run: FlowRun) -> list[tuple[str, str]]:
    """Return the current log of a run, in order: (level, line)."""
    wanted = {"logs": {"flow_run_id": {"any_": [str(run.id)]}}, "sort": "TIMESTAMP_ASC"}
    with get_client(sync_client=True) as client:
        rows = client.request("POST", "/logs/filter", json=wanted).json()
    return [(logging.getLevelName(row["level"]), row["message"]) for row in rows]


def flow_run(run_id: UUID) -> FlowRun:
    """Return a flow run from the server."""
    with get_client(sync_client=True) as client:
        return client.read_flow_run(run_id)


def newest_run() -> FlowRun:
    """Return the flow run that the server got last."""
    with get_client(sync_client=True) as client:
        return max(client.read_flow_runs(), key=lambda run: str(run.created))


def wait_until_final(run_id: UUID, seconds: float = 240) -> FlowRun:
    """Return a flow run once it has ended."""

    def ended() -> FlowRun | None:
        run = flow_run(run_id)
        return run if run.state is not None and run.state.is_final() else None

    found: FlowRun = wait_until(ended, seconds, interval=1)  # a request takes 50 ms of processor time
    return found
