"""The processes of `tokenloom up`: Prefect's server and a worker, which end with it.

Prefect reads its settings from the environment when it is imported, so it is imported after they are set.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from tokenloom.errors import TokenloomError, one_line
from tokenloom.flows.store_links import STORES, STORES_FOLDER
from tokenloom.server.known_server import HEARTBEAT_SECONDS, POOL, PRIVATE, URL_FILE, answers, prepare_environment
from tokenloom.storage.stores.local_files import read_regular
from tokenloom.wording import print_status

_SETTINGS = {
    "PREFECT_WORKER_QUERY_SECONDS": "2",
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_SECONDS),
    # In files, a run's hold on its deployment's only slot outlives `up`, and its end is noticed.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    "PREFECT_SERVER_UI_API_URL": "/api",  # relative to the address in the browser: an SSH forward has another port
}
_START_SECONDS = 120
_STOP_SECONDS = 20


def run_services(home: Path, port: int, runs: int, on_ready: Callable[[str, dict[str, str]], None]) -> str:
    """Run the server, the deployments and a worker until Ctrl-C or SIGTERM; return the URL of the server's API.

    Args:
        home: folder of the database, storage and logs.
        port: a port of 127.0.0.1; 0 for a free one.
        runs: flow runs at a time.
        on_ready: called once everything runs, with the URL of the server's API, and each deployment's page by label.

    Raises:
        OSError: the folder can't be created.
        TokenloomError: it is in use, the port is taken, or a process ended.
        KeyboardInterrupt: Ctrl-C or SIGTERM before everything ran.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)  # it holds the key of Prefect's secrets
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell starts background jobs with SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    running_url = None
    with ExitStack() as stack:
        try:
            stack.enter_context(_lock(home))
            _set_environment(home)
            print_status("starting the Prefect server; the first start takes half a minute")
            server, url = stack.enter_context(running_server(home / "server.log", port))
            os.environ["PREFECT_API_URL"] = url
            from tokenloom.server.deployments import deploy_all, deployment_pages

            deploy_all(url)
            options = ["--pool", POOL, "--limit", str(runs), "--name", "up", "--install-policy", "never"]
            command = [sys.executable, "-m", "prefect", "worker", "start", *options]
            worker = stack.enter_context(_running(command, home / "worker.log"))
            (home / URL_FILE).write_text(url, encoding="utf-8")
            stack.callback((home / URL_FILE).unlink, missing_ok=True)
            on_ready(url, deployment_pages(url))
            running_url = url
            while server.poll() is None and worker.poll() is None:
                time.sleep(1)
            name = "worker" if server.poll() is None else "server"
            raise TokenloomError(f"the {name} ended; {home / name}.log says why; then run `tokenloom up` again")
        except KeyboardInterrupt:
            for number in (signal.SIGINT, signal.SIGTERM):  # a second Ctrl-C must not interrupt the clean-up
                signal.signal(number, signal.SIG_IGN)
            print_status("stopping the worker, then the server")
            if running_url is None:
                raise
            return running_url


def _lock(home: Path) -> AbstractContextManager[object]:
    """Return the lock of a folder, which ends with the block; raise TokenloomError if another `up` holds it."""
    try:
        return FileLock(home / "up.lock").acquire(blocking=False)
    except Timeout as error:
        raise TokenloomError(
            f"{home}: another `tokenloom up` uses this folder; stop it, or choose another --folder"
        ) from error


def _set_environment(home: Path) -> None:
    """Set the environment of the server, the worker and this process, their client."""
    os.environ.update(PRIVATE | _SETTINGS | {"PREFECT_HOME": str(home), STORES: str(home / STORES_FOLDER)})
    prepare_environment()
    os.environ.setdefault("TOKENLOOM_HOME", str(Path.cwd()))
    if password := os.environ.get("PREFECT_SERVER_API_AUTH_STRING"):
        os.environ.setdefault("PREFECT_API_AUTH_STRING", password)


@contextmanager
def running_server(log: Path, port: int = 0) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run a server with the settings of the environment; yield its process and the URL of its API once it answers.

    Args:
        log: its output is appended.
        port: a port of 127.0.0.1; 0 for a free one.

    Raises TokenloomError if the port is taken or the server does not start.
    """
    try:
        with socket.create_server(("127.0.0.1", port)) as listener:
            port = listener.getsockname()[1]
    except OSError as error:
        raise TokenloomError(f"port {port} of 127.0.0.1 can't be used ({error.strerror}); choose another") from error
    app = ["--factory", "tokenloom.server.app:prefect_app", "--host", "127.0.0.1", "--port", str(port)]
    url = f"http://127.0.0.1:{port}/api"
    start = log.stat().st_size if log.exists() else 0
    origin = url.removesuffix("/api")  # by default every page reads answers
    command = [sys.executable, "-m", "uvicorn", *app, "--log-level", "error"]
    with _running(command, log, PREFECT_SERVER_CORS_ALLOWED_ORIGINS=origin) as process:
        deadline = time.monotonic() + _START_SECONDS
        while not answers(url):
            if process.poll() is not None or time.monotonic() > deadline:
                text = one_line(read_regular(log)[start:].decode(errors="replace"))[-400:]
                raise TokenloomError(
                    f"the Prefect server did not start; {log} ends: {text}; if a newer Prefect made its database in "
                    f"{log.parent}, run `pip install --upgrade prefect` or choose another --folder"
                )
            time.sleep(0.1)
        yield process, url


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children, such as the flow runs of a worker, which report their end to the server."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):  # the group has ended
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)


@contextmanager
def _running(command: list[str], log: Path, **settings: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that Ctrl-C in the terminal does not reach; stop it and its children when the block ends."""
    interrupts = list[int]()
    handler = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))  # until the process is known
    environment, null = os.environ | settings, subprocess.DEVNULL
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdin=null, stdout=output, stderr=output, start_new_session=True, env=environment
        )
    try:
        signal.signal(signal.SIGINT, handler)
        if interrupts:
            raise KeyboardInterrupt
        yield process
    finally:
        _stop(process)
