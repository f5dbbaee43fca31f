"""Fixtures that many tests share; plain helpers are in builders, servers and drivers."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.builders.distributions import Distributions, build_distributions
from tests.counts import FULL, SUMMARY, count
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.prefect_servers import migrated_home
from tests.servers.s3_server import s3_server, sent_through
from tokenloom.storage import stores

pytest_plugins = ["tests.without_torch"]

# A busy machine is slow, which is not a fault of a test: no example has a deadline.
settings.register_profile(
    "tokenloom", max_examples=count(25, 100), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tokenloom")

# Ten seconds of a processor for a server that nobody asked for, such as a request of Dask's threads after a flow.
os.environ["PREFECT_SERVER_ALLOW_EPHEMERAL_MODE"] = "false"
if not FULL:
    os.fsync = lambda fd: None  # no power fails during a test, and a device takes milliseconds


#: Folders whose commands, called in the process of the tests, start a pool of workers only if they are asked to.
WITHOUT_WORKERS = ("builds", "tasks")


@pytest.fixture(scope="module", autouse=True)
def default_workers(request: pytest.FixtureRequest) -> Iterator[None]:
    """By default, `plan`, `verify` and the like start no pool, which takes 0.4 s of a processor."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.parent.name in WITHOUT_WORKERS:
            patch.setattr("tokenloom.tasks.running.workers.num_cores", lambda: 0)
        yield


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
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """The sdist and the wheel of the tracked files; the workers of pytest-xdist share them."""
    folder = tmp_path_factory.getbasetemp()
    return build_distributions(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder)


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    """The URL of an S3 server with a bucket `corpora`; upload to it with tests.servers.s3_server."""
    pytest.importorskip("moto")
    pytest.importorskip("s3fs")
    with s3_server() as url:
        yield url


@pytest.fixture(scope="session")
def shared_proxy(s3_url: str) -> Iterator[FaultyProxy]:
    """The proxy before the S3 server. Its address stays, so that this process needs one client, which is slow."""
    with FaultyProxy(s3_url) as proxy:
        yield proxy


@pytest.fixture
def s3_proxy(shared_proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """A proxy before the S3 server that fails as planned; the environment sends s3:// through it.

    This process waits only briefly between its tries.
    """
    monkeypatch.setattr(stores, "KINDS", tuple(kind._replace(tries=4) for kind in stores.KINDS))
    shared_proxy.forget()
    with sent_through(shared_proxy):
        yield shared_proxy
    shared_proxy.forget()


#: Folders whose tests share a server or a site and so run in one process; otherwise each file runs in one process.
ONE_PROCESS = ("flows", "site", "up")
#: The longest groups start first, so that no process is left with a long file while the others are idle.
FIRST = ("up", "flows", "tasks/test_memory.py")


def _group(path: str) -> str:
    """Return the group of a file below tests/, such as "flows" or "reader/test_order.py"."""
    folder = path.partition("/")[0]
    return folder if folder in ONE_PROCESS else path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return a scheduler that runs a group in one process; xdist's own `loadgroup` has no effect with pytest 9."""
    from xdist.scheduler import LoadScopeScheduling

    class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid.split("::")[0].removeprefix("tests/"))

    return GroupScheduling(config, log)


#: Folders of tests that are all slow: whole builds, servers, programs.
SLOW_FOLDERS = ("benchmarks", "builds", "examples", "own_servers", "peers", "release", "site", "up")
#: Fixtures that start a server: the tests that use them are slow.
SERVERS = {"azurite_url", "migrated", "prefect_server", "s3_proxy", "s3_url"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark slow tests, and run the longest groups first."""
    tests = Path(__file__).parent
    for item in items:
        folder = item.path.relative_to(tests).parts[0]
        if folder in SLOW_FOLDERS or SERVERS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
    order = {group: place for place, group in enumerate(FIRST)}
    items.sort(key=lambda item: order.get(_group(item.path.relative_to(tests).as_posix()), len(FIRST)))


def pytest_collection_finish() -> None:
    """Exclude what is imported by now from garbage collection, which would take half a second each time."""
    gc.collect()
    gc.freeze()


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
