"""Fixtures that many tests share; plain helpers are in builders, servers and drivers."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.counts import SUMMARY
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.prefect_servers import migrated_home, send_all, serving_flows
from tests.servers.s3_server import s3_server
from tokenloom.server.prefect_home import ensure_prefect_home
from tokenloom.tasks.running.retries import RETRY_SECONDS

if TYPE_CHECKING:
    from tests.servers.browser import Page
    from tests.servers.running import Up

# A busy machine is slow, which is not a fault of a test: no example has a deadline.
settings.register_profile("tokenloom", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tokenloom")

ensure_prefect_home()  # before any test imports Prefect, whose warning would be an error


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data, TOKENLOOM_TEST_DATA; tests that need it skip where it is missing."""
    folder = os.environ.get("TOKENLOOM_TEST_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("needs real data: set TOKENLOOM_TEST_DATA to its folder")
    return Path(folder)


@pytest.fixture(scope="session")
def tiktoken_cache() -> Path:
    """The folder of tiktoken's vocabularies, TIKTOKEN_CACHE_DIR; tests that need it skip where it is missing."""
    folder = os.environ.get("TIKTOKEN_CACHE_DIR")
    if not folder or not Path(folder).is_dir():
        pytest.skip("needs vocabularies: set TIKTOKEN_CACHE_DIR to the folder that contains them")
    return Path(folder)


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PREFECT_HOME with an up-to-date database, to copy; the workers of pytest-xdist share it."""
    folder = tmp_path_factory.getbasetemp()
    return migrated_home(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder)


@pytest.fixture(scope="session")
def flows_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The PREFECT_HOME of the server for flows in this process."""
    return tmp_path_factory.mktemp("prefect")


@pytest.fixture(scope="session")
def flows_url(migrated: Path, flows_home: Path) -> Iterator[str]:
    """The API of the server for flows in this process."""
    with serving_flows(migrated, flows_home) as url:
        yield url


@pytest.fixture(scope="module")
def prefect_server(flows_url: str, flows_home: Path) -> Iterator[Path]:
    """The PREFECT_HOME of a server for a module's flows, which end without waiting a second for a heartbeat."""
    from prefect.settings import PREFECT_API_URL, PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    with temporary_settings({PREFECT_API_URL: flows_url, PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield flows_home
        send_all()


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry tasks of this process's flows without a delay."""
    monkeypatch.setattr("tokenloom.flows.runners._run.retry_delay_seconds", [0.1] * len(RETRY_SECONDS))


@pytest.fixture(scope="session")
def shared_up(migrated: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A running `tokenloom up` for all tests that leave its processes alive; see TOGETHER."""
    from tests.servers.running import Up, processes_with, running_up, wait_until_gone

    folder, mark = tmp_path_factory.mktemp("up"), f"mark-{uuid.uuid4()}"
    with running_up(folder, mark, migrated) as (_, url):
        assert len(processes_with(mark)) >= 3  # itself, the server, the worker
        yield Up(folder, url, mark)
    assert wait_until_gone(mark) == []
    logs = {path.name: path.read_text() for path in (folder / "up").glob("*.log")}
    assert "worker.log" in logs
    assert [name for name, log in logs.items() if "Fatal" in log or "database is locked" in log] == []


@pytest.fixture(scope="session")
def browser() -> Iterator[Page]:
    """A browser that can reach only this machine."""
    from tests.servers.browser import chromium

    with chromium("http://127.0.0.1") as page:
        yield page


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    """The URL of an S3 server with a bucket `corpora`; upload to it with tests.servers.s3_server."""
    pytest.importorskip("moto")
    pytest.importorskip("s3fs")
    with s3_server() as url:
        yield url


@pytest.fixture
def s3_proxy(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """A proxy before the S3 server that fails as planned; the environment sends s3:// through it."""
    with FaultyProxy(s3_url) as proxy:
        variables = {
            "AWS_ENDPOINT_URL": proxy.url,
            "AWS_ACCESS_KEY_ID": "an-access-key-id",
            "AWS_SECRET_ACCESS_KEY": "a-secret-access-key",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "NO_PROXY": "127.0.0.1",
        }
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("AWS_PROFILE", raising=False)
        yield proxy


#: Files that share a server run one after another in one process, because a session fixture exists once per process.
TOGETHER = {
    "up": ("flows/test_up.py", "flows/test_browser.py", "walks/test_ui.py"),
    "prefect_server": (
        "flows/test_build_dataset.py",
        "flows/test_dask.py",
        "flows/test_blocks.py",
        "flows/test_progress.py",
        "flows/test_rebuild_dataset.py",
        "flows/test_verify_dataset.py",
    ),
}
#: The longest groups start first, so that no process is left with a long file while the others are idle.
FIRST = ("up", "flows/test_up_faults.py", "prefect_server", "builds/test_kills.py", "builds/test_round_trip.py")


def _group(path: str) -> tuple[str, int]:
    """Return the group of a file (a key of TOGETHER, or else itself), and its place in the group.

    Args:
        path: below tests/, such as "flows/test_up.py".
    """
    found = ((name, files.index(path)) for name, files in TOGETHER.items() if path in files)
    return next(found, (path, 0))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return a scheduler that runs a group in one process; xdist's own `loadgroup` has no effect with pytest 9."""
    from xdist.scheduler import LoadScopeScheduling

    class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid.split("::")[0].removeprefix("tests/"))[0]

    return GroupScheduling(config, log)


#: Folders of tests that are all slow: whole builds, walks through the pages, programs.
SLOW_FOLDERS = ("builds", "benchmarks", "examples", "walks")
#: Fixtures that start a server or a browser: the tests that use them are slow.
SERVERS = {"azurite_url", "browser", "migrated", "postgres", "prefect_server", "s3_proxy", "s3_url", "shared_up"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark slow tests, and run the longest groups first."""
    for item in items:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        if folder in SLOW_FOLDERS or SERVERS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
    order = dict(zip(FIRST, range(len(FIRST)), strict=True))

    def rank(item: pytest.Item) -> tuple[int, int]:
        group, place = _group(item.path.relative_to(Path(__file__).parent).as_posix())
        return order.get(group, len(FIRST)), place

    items.sort(key=rank)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the counts of tests from a worker of pytest-xdist to the process that prints them."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["summary"] = SUMMARY


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Receive the counts of a worker's tests."""
    SUMMARY.extend(getattr(node, "workeroutput", {}).get("summary", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the counts of all tests."""
    for line in SUMMARY:
        terminalreporter.write_line(line)
