"""`tokenloom up`: run a Prefect server with the deployments and a worker on this machine."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from tokenloom.cli.argument_types import integer_in, positive
from tokenloom.cli.output import Output
from tokenloom.cli.results import Result
from tokenloom.flows.store_links import PREFIX
from tokenloom.server.known_server import default_home
from tokenloom.server.up import Services, run_services


@dataclass(frozen=True)
class UpResult(Result):
    """Where the server was, and the folder of its data."""

    url: str
    folder: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--folder", metavar="DIR", help="folder of the database, storage and logs (default: ~/.tokenloom)"
    )
    parser.add_argument(
        "--port",
        type=integer_in(0, 65_535),
        default=4200,
        metavar="PORT",
        help="port on 127.0.0.1; 0: a free one (default: 4200)",
    )
    parser.add_argument(
        "--runs", type=positive, default=2, metavar="N", help="how many flow runs run at a time (default: 2)"
    )


def run(folder: str | None, port: int, runs: int, out: Output) -> UpResult:
    """Start the server, the work pool, the deployments and a worker; stop them on Ctrl-C.

    Args:
        folder: the folder of the database, storage and logs; None for default_home().
        port: a port of 127.0.0.1; 0 for a free one.
        runs: flow runs at a time.
        out: prints the result.

    Raises:
        TokenloomError: the folder can't be created or is in use, the port is taken, or a process does not start.
        KeyboardInterrupt: Ctrl-C before everything was running.
    """
    home = Path(folder).expanduser().absolute() if folder else default_home()
    url = run_services(home, port, runs, lambda services: _print(out, home, services))
    return UpResult(url, str(home))


def _print(out: Output, home: Path, services: Services) -> None:
    out.line(f"Prefect UI      {services.url.removesuffix('/api')}")
    out.line(f"build           {services.pages['build-a-spec-file']}")
    out.line(f"without a file  {services.pages['build-dataset']}")
    out.line(f"verify          {services.pages['verify-dataset']}")
    out.line(f"collect         {services.pages['collect-garbage']}")
    out.line(f"export          {services.pages['export-dataset']}")
    out.line(f"catalogues      {services.url.removesuffix('/api')}{PREFIX}")
    out.line(f"data and logs   {home}")
    out.line(f"relative paths  from {os.environ['TOKENLOOM_HOME']} (TOKENLOOM_HOME)")
    out.line("Ctrl-C stops everything")
    sys.stdout.flush()
