"""The processes of `tokenloom up`: a Prefect server and a worker, restarted when they die, stopped on Ctrl-C.

Prefect reads its settings from the environment when it is imported, so it is imported after they are set.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from filelock import FileLock, Timeout

from tokenloom.console import print_status
from tokenloom.errors import TokenloomError
from tokenloom.flows.runs.store_links import STORES, STORES_FOLDER
from tokenloom.server.prefect_server import (
    HEARTBEAT_SECONDS,
    POOL,
    PRIVATE,
    WORKER,
    how_ended,
    prepare_environment,
    start_server,
    stop_server,
)
from tokenloom.server.process_tree import (
    adopt_orphans,
    children,
    kill_children,
    reap_children,
    terminate_children,
)
from tokenloom.storage.stores.local_files import read_regular

_SETTINGS = {
    "PREFECT_WORKER_QUERY_SECONDS": "2",
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_SECONDS),
    # Leases in files survive a restart of the server. Prefect ends a run whose lease the server does not know.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
}
_URL_FILE = "server.url"  # `tokenloom build` reads the URL of the server's API from it
_SHORT_SECONDS = 60.0
_MAX_SHORT_LIVES = 3
_ONLINE_SECONDS = 60
_STOP_SECONDS = 20


def default_home() -> Path:
    """Return the folder named by TOKENLOOM_UP_HOME; ~/.tokenloom if it is not set."""
    return Path(os.environ.get("TOKENLOOM_UP_HOME") or Path(os.path.expanduser("~")) / ".tokenloom")


def running_url(home: Path) -> str | None:
    """Return the URL of the API of the server that uses a folder; None if there is none, or it was killed."""
    try:
        return read_regular(home / _URL_FILE).decode()
    except OSError:
        return None


class SupervisedProcess:
    """A running process, and how to start it again.

    Args:
        name: for messages.
        log: path of the file it writes to.
        process: the running process.
        start: starts another one.
    """

    def __init__(
        self, name: str, log: Path, process: subprocess.Popen[bytes], start: Callable[[], subprocess.Popen[bytes]]
    ) -> None:
        self._name, self._log, self.process, self._start = name, log, process, start
        self._started = time.monotonic()
        self._num_short_lives = 0

    def restart_if_ended(self) -> None:
        """Start the process again if it ended.

        Raises:
            TokenloomError: it ended three times in a row, each within a minute of its start.
        """
        code = self.process.poll()
        if code is None:
            return
        is_short = time.monotonic() - self._started < _SHORT_SECONDS
        self._num_short_lives = self._num_short_lives + 1 if is_short else 0
        how = how_ended(code)
        if self._num_short_lives >= _MAX_SHORT_LIVES:
            raise TokenloomError(f"the {self._name} keeps ending ({how}); {self._log} says why")
        print_status(f"the {self._name} ended ({how}; {self._log} says why); restarting it")
        self.process = self._start()
        self._started = time.monotonic()


@dataclass(frozen=True)
class Services:
    """What runs: the URL of the server's API, and each deployment's page by name."""

    url: str
    pages: dict[str, str]


def run_services(home: Path, port: int, runs: int, on_ready: Callable[[Services], None]) -> str:
    """Run the server, the deployments and a worker until Ctrl-C or SIGTERM; return the URL of the server's API.

    Args:
        home: folder of the database, storage and logs.
        port: a port of 127.0.0.1; 0 for a free one.
        runs: flow runs at a time.
        on_ready: called once everything runs.

    Raises:
        TokenloomError: the folder can't be created or is in use, the port is taken, or a process does not start.
        KeyboardInterrupt: Ctrl-C or SIGTERM before everything ran.
    """
    _make_folder(home)
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell starts background jobs with SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    adopt_orphans()
    services = None
    with ExitStack() as stack:
        try:
            stack.enter_context(_locked(home))
            server, url = stack.enter_context(_running_server(home, port))
            from tokenloom.server.deployments import deploy_all, deployment_pages

            deploy_all(url, HEARTBEAT_SECONDS)
            pages = deployment_pages(url)
            worker = stack.enter_context(_running_worker(home, runs, server))
            (home / _URL_FILE).write_text(url, encoding="utf-8")
            stack.callback((home / _URL_FILE).unlink, missing_ok=True)
            services = Services(url, pages)
            on_ready(services)
            _supervise(server, worker)
        except KeyboardInterrupt:
            for number in (signal.SIGINT, signal.SIGTERM):  # a second Ctrl-C must not interrupt the clean-up
                signal.signal(number, signal.SIG_IGN)
            print_status("stopping the worker, then the server")
            if services is None:
                raise
            return services.url


def _make_folder(home: Path) -> None:
    if home.parts[0] == "~":
        raise TokenloomError("the home folder of this user is unknown; choose a --folder")
    if "?" in str(home):
        raise TokenloomError(f"{home}: SQLite can't open a file in a folder with '?'; choose another --folder")
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)  # it holds the key of Prefect's secrets
    except OSError as error:
        raise TokenloomError(f"{home}: can't be created ({error.strerror}); choose another --folder") from error


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    lock = FileLock(home / "up.lock")
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise TokenloomError(
            f"{home}: another `tokenloom up` uses this folder; stop it, or choose another --folder"
        ) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _running_server(home: Path, port: int) -> Iterator[tuple[SupervisedProcess, str]]:
    """Run the server, and set the environment that its clients need."""
    os.environ.pop("PREFECT_API_URL", None)  # it may name another server
    os.environ.update(PRIVATE | _SETTINGS | {"PREFECT_HOME": str(home), STORES: str(home / STORES_FOLDER)})
    prepare_environment()
    os.environ.setdefault("TOKENLOOM_HOME", str(Path.cwd()))
    print_status("starting the Prefect server; the first start takes half a minute")
    before = children()
    log = home / "server.log"
    with ExitStack() as stack:
        process, url = start_server(port, log)
        os.environ["PREFECT_API_URL"] = url
        known_port = int(url.removesuffix("/api").rpartition(":")[2])
        server = SupervisedProcess("server", log, process, lambda: start_server(known_port, log)[0])
        stack.callback(lambda: stop_server(server.process))
        stack.callback(lambda: kill_children(keep={server.process.pid} | before))  # flow runs that the worker left
        yield server, url


@contextmanager
def _running_worker(home: Path, runs: int, server: SupervisedProcess) -> Iterator[SupervisedProcess]:
    """Run a worker that the server knows; stop it, and its flow runs, when the block ends."""
    before = children() - {server.process.pid}
    with (home / "worker.log").open("ab") as log, ExitStack() as stack:

        def start() -> subprocess.Popen[bytes]:
            # The flow runs of a killed worker end as Crashed: a new worker could not cancel them.
            terminate_children({server.process.pid} | before)
            return _start_worker(runs, log.fileno())

        worker = SupervisedProcess("worker", home / "worker.log", start(), start)
        stack.callback(lambda: _stop_worker(worker.process))
        _wait_until_online(worker.process, home)
        yield worker


def _start_worker(runs: int, log: int) -> subprocess.Popen[bytes]:
    options = ["worker", "start", "--pool", POOL, "--limit", str(runs), "--name", WORKER, "--install-policy", "never"]
    return subprocess.Popen(
        [sys.executable, "-m", "tokenloom.server.worker_process", *options],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


def _stop_worker(process: subprocess.Popen[bytes]) -> None:
    """Stop a worker, which kills its flow runs, and record them as Crashed."""
    from tokenloom.server.up_runs import end_runs

    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        print_status("the worker does not stop; killing it")
        process.kill()
        process.wait()
    end_runs()


def _wait_until_online(worker: subprocess.Popen[bytes], home: Path) -> None:
    from prefect.client.orchestration import get_client

    deadline = time.monotonic() + _ONLINE_SECONDS
    with get_client(sync_client=True) as client:
        while not client.read_workers_for_work_pool(POOL):
            if worker.poll() is not None or time.monotonic() > deadline:
                raise TokenloomError(f"the worker did not start; {home}/worker.log says why")
            time.sleep(0.2)


def _supervise(*processes: SupervisedProcess) -> NoReturn:
    """Restart processes that end; raise TokenloomError if one keeps ending."""
    while True:
        time.sleep(1)
        for process in processes:
            process.restart_if_ended()
        reap_children(keep={process.process.pid for process in processes})
