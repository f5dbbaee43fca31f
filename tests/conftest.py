"""Fixtures that many tests share; plain helpers are in builders, servers and drivers."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.builders.distributions import Distributions, build_distributions
from tests.builders.made_data import write_made_data
from tests.builders.vocabularies import made_definition
from tests.counts import FULL, NEEDS_DATA, SUMMARY, count, data_folder
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
    """The folder of real data, TOKENLOOM_TEST_DATA; tests of exactly that skip where it is missing."""
    folder = data_folder("TOKENLOOM_TEST_DATA")
    if folder is None:
        pytest.skip(f"{NEEDS_DATA}: TOKENLOOM_TEST_DATA names no folder of real texts; CONTRIBUTING.md describes it")
    return folder


@pytest.fixture(scope="session")
def tiktoken_cache() -> Path:
    """The folder of tiktoken's vocabularies, TIKTOKEN_CACHE_DIR; tests of exactly these skip where it is missing."""
    folder = data_folder("TIKTOKEN_CACHE_DIR")
    if folder is None:
        pytest.skip(
            f"{NEEDS_DATA}: TIKTOKEN_CACHE_DIR names no folder of vocabularies; CONTRIBUTING.md says how to fetch them"
        )
    return folder


@pytest.fixture(scope="session")
def any_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of real data; where it is missing, a folder of made files with the same names and layouts."""
    return data_folder("TOKENLOOM_TEST_DATA") or write_made_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """Definitions of tiktoken's encodings by name; where their files are missing, made ones with their patterns."""
    has_files = data_folder("TIKTOKEN_CACHE_DIR") is not None
    folder = tmp_path_factory.mktemp("vocabularies")

    def definition(name: str) -> dict[str, Any]:
        if has_files:
            return {"kind": "tiktoken", "name": name}
        return made_definition(folder / f"{name}.tiktoken", name)

    return definition


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


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that bounds how many tests may skip for lack of data."""
    parser.addoption("--max-data-skips", type=int, help="fail if more tests than this skip for lack of data")


def _num_data_skips(config: pytest.Config) -> int:
    """Return how many tests skipped for lack of data; in a worker of pytest-xdist none."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    reports = reporter.stats.get("skipped", []) if reporter else []
    return sum(f"Skipped: {NEEDS_DATA}" in str(report.longrepr) for report in reports)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail a run with too many skips; send counts from a worker of pytest-xdist to the process that prints them."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["summary"] = SUMMARY
    most = session.config.getoption("max_data_skips")
    if most is not None and _num_data_skips(session.config) > most:
        session.exitstatus = exitstatus or pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Receive the counts of a worker's tests."""
    SUMMARY.extend(getattr(node, "workeroutput", {}).get("summary", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the counts of all tests, and how many skipped for lack of data where that is bounded."""
    most = config.getoption("max_data_skips")
    if most is not None:
        terminalreporter.write_line(f"skipped for lack of data: {_num_data_skips(config)} tests, of at most {most}")
    for line in SUMMARY:
        terminalreporter.write_line(line)
