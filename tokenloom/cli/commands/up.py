"""`tokenloom up` and `tokenloom deploy`: server, work pool, deployments and a worker on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from tokenloom.cli.display import say
from tokenloom.cli.output import Json, print_line
from tokenloom.errors import TokenloomError
from tokenloom.server.supervised_process import Kept
from tokenloom.server.orphans import adopt_orphans, bury_children, children, descendants, end_children, kill_children
from tokenloom.server.prefect_server import HEARTBEAT_SECONDS, POOL, PRIVATE, WORKER, start_server, stop_server
from tokenloom.server.up_folder import default_home, forget_url, note_url, running_url

_SETTINGS = {
    "PREFECT_WORKER_QUERY_SECONDS": "2",
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_SECONDS),
    # In files: a run whose lease a new server does not know is ended by Prefect.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
}
_ONLINE_SECONDS = 60
_STOP_SECONDS = 20


def up(folder: str | None, port: int, runs: int, quiet: bool) -> Json:
    """Start server, work pool, deployments and a worker; stop all of it on Ctrl-C.

    Args:
        folder: of database, storage and logs; None for default_home().
        port: of 127.0.0.1; 0 for a free one.
        runs: flow runs at a time.
        quiet: print nothing on stdout.

    Raises:
        TokenloomError: the folder can't be made or is in use, the port is taken, or something does not start.
    """
    home = Path(folder).expanduser().absolute() if folder else default_home()
    if "?" in str(home):
        raise TokenloomError(f"{home}: SQLite can't name a file in a folder with '?'; choose another --folder")
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)  # the key of Prefect's secrets lies in it
    except OSError as error:
        raise TokenloomError(f"{home}: can't be made ({error.strerror}); choose another --folder") from error
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background job ignores the first
        signal.signal(number, signal.default_int_handler)
    adopt_orphans()
    with ExitStack() as stack:
        try:
            stack.enter_context(_alone(home))
            server, url = stack.enter_context(_serving(home, port))
            from tokenloom.server.deployments import deploy_all, deployment_pages

            kept = deploy_all(url, HEARTBEAT_SECONDS)
            pages = deployment_pages(url)
            worker = stack.enter_context(_working(home, runs, server))
            note_url(home, url)
            stack.callback(forget_url, home)
            print_line(quiet, f"Prefect UI      {url.removesuffix('/api')}")
            print_line(quiet, f"build           {pages['build-dataset']}")
            print_line(quiet, f"schedule        {pages['rebuild-nightly']}")
            print_line(quiet, f"verify          {pages['verify-dataset']}")
            _print_kept(quiet, kept)
            print_line(quiet, f"data and logs   {home}")
            print_line(quiet, f"relative paths  from {os.environ['TOKENLOOM_HOME']} (TOKENLOOM_HOME)")
            print_line(quiet, "Ctrl-C stops all of it")
            sys.stdout.flush()
            _watch(server, worker)
        except KeyboardInterrupt:
            for number in (signal.SIGINT, signal.SIGTERM):  # one is enough
                signal.signal(number, signal.SIG_IGN)
            say("stopping: worker first, then the server")
    return {"url": url, "folder": str(home)}


def deploy(quiet: bool) -> Json:
    """Create the work pool and the deployments on the server in PREFECT_API_URL, or of a running `tokenloom up`.

    Raises TokenloomError if there is no server, or it refuses.
    """
    from tokenloom.server.prefect_session import known_url

    url = known_url()
    if url is None:
        raise TokenloomError("no Prefect server: set PREFECT_API_URL, or run `tokenloom up`, which deploys by itself")
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY

    from tokenloom.server.deployments import NAMES, deploy_all

    is_of_up = url == running_url(default_home())
    heartbeat = HEARTBEAT_SECONDS if is_of_up else PREFECT_FLOWS_HEARTBEAT_FREQUENCY.value() or 0
    kept = deploy_all(url, max(heartbeat, HEARTBEAT_SECONDS))
    print_line(quiet, f"deployed build-dataset, rebuild-nightly and verify-dataset to {url}, work pool {POOL}")
    _print_kept(quiet, kept)
    print_line(quiet, f"a run without a heartbeat for {3 * max(heartbeat, HEARTBEAT_SECONDS)} s counts as dead")
    print_line(quiet, f"next: prefect worker start --pool {POOL}")
    return {"url": url, "deployments": list(NAMES), "kept": kept}


def _print_kept(quiet: bool, kept: list[str]) -> None:
    for name in kept:
        print_line(
            quiet, f"kept            {name} of an earlier release, since its parameters or schedules were changed:"
        )
        print_line(quiet, "                schedule rebuild-dataset/rebuild-nightly with a spec file, then delete it")


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    lock = FileLock(home / "up.lock")
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise TokenloomError(f"{home}: a `tokenloom up` uses this folder already; stop it, or give --folder") from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _serving(home: Path, port: int) -> Iterator[tuple[Kept, str]]:
    """Run the server; it and all that follow take their settings from the environment."""
    os.environ.update(PRIVATE | _SETTINGS | {"PREFECT_HOME": str(home)})
    os.environ.setdefault("TOKENLOOM_HOME", str(Path.cwd()))
    say("starting the Prefect server; the first time takes half a minute")
    before = children()
    with (home / "server.log").open("ab") as log, ExitStack() as stack:
        process, url = start_server(port, log)
        os.environ["PREFECT_API_URL"] = url
        known_port = int(url.removesuffix("/api").rpartition(":")[2])
        server = Kept("server", log.name, process, lambda: start_server(known_port, log)[0])
        stack.callback(lambda: stop_server(server.process))
        stack.callback(lambda: kill_children(but={server.process.pid} | before))  # runs that the worker left
        yield server, url


@contextmanager
def _working(home: Path, runs: int, server: Kept) -> Iterator[Kept]:
    """Run a worker and wait until the server knows it; at the end no process of it is left."""
    before = children() - {server.process.pid}
    options = ["worker", "start", "--pool", POOL, "--limit", str(runs), "--name", WORKER, "--install-policy", "never"]
    with (home / "worker.log").open("ab") as log, ExitStack() as stack:

        def start() -> subprocess.Popen[bytes]:
            # Runs that a killed worker has left end as Crashed: a new one could not cancel them.
            end_children({server.process.pid} | before)
            return subprocess.Popen(
                [sys.executable, "-m", "tokenloom.server.worker_process", *options],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

        worker = Kept("worker", log.name, start(), start)
        stack.callback(lambda: _stop_worker(worker.process))
        _wait_until_online(worker.process, home)
        yield worker


def _stop_worker(process: subprocess.Popen[bytes]) -> None:
    """Stop a worker, which kills its runs, and let these end as Crashed."""
    from tokenloom.server.up_runs import end_runs, runs_of

    runs = runs_of(descendants(process.pid))
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        say("the worker does not stop by itself; it is killed")
        process.kill()
        process.wait()
    end_runs(runs)


def _wait_until_online(worker: subprocess.Popen[bytes], home: Path) -> None:
    from prefect.client.orchestration import get_client

    deadline = time.monotonic() + _ONLINE_SECONDS
    with get_client(sync_client=True) as client:
        while not client.read_workers_for_work_pool(POOL):
            if worker.poll() is not None or time.monotonic() > deadline:
                raise TokenloomError(f"the worker did not start; {home}/worker.log says why")
            time.sleep(0.2)


def _watch(*processes: Kept) -> None:
    """Keep processes running; raises TokenloomError if one ends at once again and again."""
    while True:
        time.sleep(1)
        for process in processes:
            process.keep()
        bury_children(but={process.process.pid for process in processes})
