"""Commands of the command line whose datasets come from a hub of tests, each in a process of its own.

huggingface_hub and datasets read the hub's address as they are imported, which takes two seconds. Here, a program
imports them once, and forks for each command: no command knows what an earlier one has asked.

    python -m tests.drivers.hub_driver     reads one JSON object a line, answers each with an exit code
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.counts import FULL

_IMPORTED = (  # what a build of a dataset imports
    *("datasets", "fsspec.implementations.http", "pandas", "pyarrow.parquet", "tests.builders.datasets"),
    *("tokenloom.cli.commands.build", "tokenloom.cli.commands.plan", "tokenloom.cli.commands.versions"),
    *("tokenloom.flows.verify_steps", "tokenloom.tasks.sources.hugging_face", "tokenloom.tasks.sources.records"),
    "tokenloom.tokenizers.plain",
)
_NOWHERE = "http://127.0.0.1:9"  # a proxy that refuses: nothing but the servers of tests is asked


class Outcome(NamedTuple):
    """The end of a command."""

    code: int
    out: str
    errors: str


class HubCommands:
    """Runs commands.

    Args:
        process: the program that imported everything.
        folder: for what commands print.
    """

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process, self._folder = process, folder
        self._lock = threading.Lock()

    def run(self, *arguments: object, **environment: str) -> Outcome:
        """Run a command of tokenloom to its end, with these variables of the environment besides."""
        out, errors = self._folder / "out", self._folder / "errors"
        request = {"arguments": list(map(str, arguments)), "environment": environment}
        request |= {"out": str(out), "errors": str(errors)}
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            code = int(self._process.stdout.readline())
            return Outcome(code, out.read_text(), errors.read_text())


def hub_environment(url: str, home: Path) -> dict[str, str]:
    """Return the environment of a process that knows only this hub, and no token."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        environment[name] = _NOWHERE
    for name in ("NO_PROXY", "no_proxy"):
        environment[name] = "127.0.0.1"
    return environment | {"HF_ENDPOINT": url, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1"}


@contextmanager
def hub_commands(url: str, folder: Path) -> Iterator[HubCommands]:
    """Run the program for the hub at `url`; `folder` is for what it writes."""
    command = [sys.executable, "-m", "tests.drivers.hub_driver"]
    environment = hub_environment(url, folder / "home")
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield HubCommands(process, folder)
        assert process.stdin is not None
        process.stdin.close()


def _run(request: Mapping[str, Any]) -> None:
    """Run a command in this process, which forked for it, and end."""
    from tokenloom.cli.main import main

    os.environ.update(request["environment"])
    for number, name in ((0, os.devnull), (1, request["out"]), (2, request["errors"])):
        opened = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(opened, number)
    code = 70
    try:
        code = main(request["arguments"])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _serve() -> None:
    for name in _IMPORTED:
        import_module(name)
    if find_spec("torch"):  # a stream of the package datasets imports it, if it is installed
        import_module("torch.utils.data")
    patch = pytest.MonkeyPatch()  # `plan`, `verify` and the like start no pool
    patch.setattr("tokenloom.tasks.running.workers.num_cores", lambda: 0)
    if not FULL:
        os.fsync = lambda fd: None
    gc.collect()
    gc.freeze()  # a collection in a child would copy all that was imported
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _run(json.loads(line))
        status = os.waitpid(child, 0)[1]
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    _serve()
