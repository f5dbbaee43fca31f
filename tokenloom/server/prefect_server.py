"""Start and stop a Prefect server on the loopback interface. It ends with the process that started it."""

from __future__ import annotations

import atexit
import errno
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from urllib.error import HTTPError

from filelock import FileLock

from tokenloom.errors import TokenloomError, message_of, one_line
from tokenloom.storage.stores.local_files import replace_file

_START_SECONDS = 120
_STOP_SECONDS = 15
_SHOWN_CHARS = 400  # so much of the end of the server's log is shown
_HOME = "PREFECT_HOME"
_UNKNOWN_REVISION = "Can't locate revision"  # of a database, in the log of a Prefect that is older than it
_RELEASE = "tokenloom-prefect-release"  # the file there that names the Prefect whose server last started
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_NO_LOOPBACK = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL)
#: settings of the server and its clients: no telemetry, and no second server
PRIVATE = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",  # a client without a URL fails; it does not start its own server
}
#: more settings of a server that ends with a build: no pages, schedules or types of blocks, which nobody would use
TEMPORARY = {
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",
    "PREFECT_MEMOIZE_BLOCK_AUTO_REGISTRATION": "false",
}

HEARTBEAT_SECONDS = 30  # between the heartbeats of a run: the minimum that Prefect accepts
POOL = "tokenloom"  # the work pool
WORKER = "up"  # name of the worker of `tokenloom up`

_servers: list[subprocess.Popen[bytes]] = []  # referenced here so that their standard input stays open


def prepare_environment() -> None:
    """Turn off Prefect's telemetry, and proxies for servers of this machine, here and in child processes.

    Clients get the password that the environment gives to a server of ours; Prefect gets a folder. Call it before
    Prefect is imported.

    Raises:
        ModuleNotFoundError: Prefect is not installed.
        TokenloomError: Prefect's clients can't use a proxy of the environment.
    """
    if find_spec("prefect") is None:
        raise ModuleNotFoundError("No module named 'prefect'", name="prefect")  # the command says what to install
    for name, value in PRIVATE.items():
        os.environ.setdefault(name, value)
    if "PREFECT_API_URL" not in os.environ and (password := os.environ.get("PREFECT_SERVER_API_AUTH_STRING")):
        os.environ.setdefault("PREFECT_API_AUTH_STRING", password)
    ensure_prefect_home()
    _bypass_proxies()


def ensure_prefect_home() -> None:
    """Set PREFECT_HOME to a temporary folder if ~/.prefect can't be written.

    Prefect's server does not start without such a folder, for example in a container whose user has no home. The
    temporary folder is removed when the program ends. A PREFECT_HOME that the user has set is not changed. Prefect
    can't be imported without a home folder, so HOME names the same folder if the system knows none.
    """
    if _HOME not in os.environ and not _is_usable():
        folder = os.environ[_HOME] = tempfile.mkdtemp(prefix="tokenloom-prefect-")
        atexit.register(_remove, folder, os.getpid())
    if os.path.expanduser("~") == "~":
        os.environ["HOME"] = os.environ[_HOME]


def _is_usable() -> bool:
    with suppress(OSError, RuntimeError):  # RuntimeError: the user has no home folder
        folder = Path.home() / ".prefect"
        folder.mkdir(mode=0o700, exist_ok=True)
        return os.access(folder, os.W_OK | os.X_OK)
    return False


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # not a forked child
        for server in _servers:  # a running one would write to the folder again
            stop_server(server)
        shutil.rmtree(folder, ignore_errors=True)


def _bypass_proxies() -> None:
    given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""  # the order in which libraries read them
    hosts = [host.strip() for host in given.split(",") if host.strip()]
    if "*" not in hosts:
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(dict.fromkeys([*hosts, *_LOOPBACK]))
    if urllib.request.getproxies().keys() - {"no"}:
        _check_proxies()


def _check_proxies() -> None:
    """Raise TokenloomError if Prefect's clients, each of which prepares all proxies, can't be made."""
    import httpx  # comes with Prefect

    try:
        httpx.Client().close()
    except (ImportError, ValueError) as error:
        raise TokenloomError(
            f"Prefect can't use a proxy of the environment (ALL_PROXY, HTTP_PROXY, HTTPS_PROXY): {message_of(error)}; "
            "unset it for this command (for a SOCKS proxy: write socks5:// and run `pip install socksio`), or build "
            "with --direct"
        ) from error


class StartingServer:
    """A server that was launched and may not answer yet. It ends with this process.

    A server that Prefect itself starts outlives a killed program, receives the terminal's Ctrl-C, and may print
    tracebacks when it stops.

    Args:
        port: a port of 127.0.0.1; 0 for a free one.
        log: where the server's output is appended; None for a file that is shown only if the server does not start.
        settings: environment variables of the server.

    Raises:
        TokenloomError: the port is taken.
    """

    def __init__(self, port: int = 0, log: Path | None = None, settings: Mapping[str, str] | None = None) -> None:
        self._log = log.open("a+b") if log else tempfile.TemporaryFile()  # noqa: SIM115  (closed by `wait`)
        self._log_start = self._log.seek(0, os.SEEK_END)
        self._lock = _start_lock()
        with suppress(OSError):  # the server says why its folder can't be written
            self._lock.acquire()
        with _listener(port) as listener:
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
            self.process = _launch(listener.fileno(), self.url, self._log.fileno(), settings or {})
        _servers.append(self.process)

    def wait(self) -> tuple[subprocess.Popen[bytes], str]:
        """Wait until the server answers, and return its process and the URL of its API.

        Raises TokenloomError, which says why, if it does not start.
        """
        deadline = time.monotonic() + _START_SECONDS
        try:
            while problem := _problem(self.url):
                if self.process.poll() is not None:
                    raise self._not_started(f"it ended with {how_ended(self.process.returncode)}")
                if _is_final(problem) or time.monotonic() > deadline:
                    raise self._not_started(f"{self.url}: {_reason(problem)}")
                time.sleep(0.1)
            with suppress(OSError):  # it only words a message
                replace_file(_prefect_folder() / _RELEASE, version("prefect").encode())
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self._lock.release()
            self._log.close()
        return self.process, self.url

    def _not_started(self, why: str) -> TokenloomError:
        self._log.seek(self._log_start)
        log = self._log.read(2**20).decode(errors="replace")
        if _UNKNOWN_REVISION in log:
            return _newer_database()
        end = one_line(log)[-_SHOWN_CHARS:]
        return TokenloomError(f"the Prefect server did not start: {why}" + (f"; its log ends: {end}" if end else ""))


def _newer_database() -> TokenloomError:
    """Return the error for a database that a newer Prefect has used, which names that release if it is known."""
    from packaging.version import Version

    folder, here, newer = _prefect_folder(), version("prefect"), ""
    with suppress(OSError):
        newer = (folder / _RELEASE).read_text(encoding="utf-8")
    is_known = bool(newer) and Version(newer) > Version(here)
    return TokenloomError(
        f"the Prefect server did not start: its database in {folder} was made by "
        f"{f'Prefect {newer}' if is_known else 'a newer Prefect'}, and here is Prefect {here}; run `pip install "
        f"{f'prefect=={newer}' if is_known else '--upgrade prefect'}`, choose another folder (PREFECT_HOME, or `up "
        f"--folder`), or delete the history of runs: `PREFECT_HOME={folder} prefect server database reset -y`"
    )


def _start_lock() -> FileLock:
    """Return the lock of a server's start: two that migrate one fresh database at once would both fail."""
    return FileLock(_prefect_folder() / "tokenloom-start.lock")


def _prefect_folder() -> Path:
    return Path(os.environ.get(_HOME) or os.path.expanduser("~/.prefect"))


def start_server(port: int = 0, log: Path | None = None) -> tuple[subprocess.Popen[bytes], str]:
    """Start a server, wait until it answers, and return its process and the URL of its API; see StartingServer."""
    return StartingServer(port, log).wait()


def _launch(listener: int, url: str, output: int, settings: Mapping[str, str]) -> subprocess.Popen[bytes]:
    ours = {
        "PREFECT_SERVER_UI_API_URL": "/api",  # of the address in the browser, as an SSH forward has another port
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": url.removesuffix("/api"),  # by default every page may read answers
        "PREFECT_SERVER_API_BASE_PATH": "/api",  # also if the user's own server has another
    }
    return subprocess.Popen(
        [sys.executable, "-m", "tokenloom.server.server_process", str(listener)],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        pass_fds=[listener],
        start_new_session=True,
        env={**os.environ, **ours, **settings},
    )


def _listener(port: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise TokenloomError(f"port {port} of 127.0.0.1 can't be used ({error.strerror}); choose another") from error


def _is_final(problem: OSError | ValueError) -> bool:
    """Return whether waiting can't help: a server that starts accepts connections, but answers nothing."""
    return isinstance(problem, HTTPError) or getattr(_cause(problem), "errno", None) in _NO_LOOPBACK


def _reason(problem: OSError | ValueError) -> str:
    is_down = getattr(_cause(problem), "errno", None) in _NO_LOOPBACK
    return message_of(_cause(problem)) + ("; is the loopback interface up?" if is_down else "")


def _cause(problem: OSError | ValueError) -> BaseException:
    """Return the error that urllib has wrapped."""
    reason = getattr(problem, "reason", None)
    return reason if isinstance(reason, BaseException) else problem


def how_ended(code: int) -> str:
    """Return how a process ended, by its return code, for messages."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def page_of(url: str, path: str) -> str:
    """Return the URL of a page of Prefect's second UI.

    Args:
        url: the URL of the server's API.
        path: the page's path, such as runs/flow-run/ID.
    """
    return f"{url.removesuffix('/api')}/v2/{path}"


def answers(url: str) -> bool:
    """Return whether the server's API is healthy."""
    return _problem(url) is None


def _problem(url: str) -> OSError | ValueError | None:
    """Return why the server's API does not answer as a healthy one; None if it does."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=10):
            return None
    except (OSError, ValueError) as error:
        return error


def stop_server(server: subprocess.Popen[bytes]) -> None:
    """Stop a server that start_server started."""
    assert server.stdin is not None  # a pipe
    server.stdin.close()
    try:
        server.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
