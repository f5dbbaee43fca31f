"""`tokenloom deploy`: create the work pool and the deployments on a running Prefect server."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from tokenloom.cli.output import Output
from tokenloom.cli.results import Result
from tokenloom.errors import TokenloomError


@dataclass(frozen=True)
class DeployResult(Result):
    """What was deployed where."""

    url: str
    deployments: list[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: the command has no arguments of its own."""


def run(out: Output) -> DeployResult:
    """Create the work pool and the deployments on the server in PREFECT_API_URL, or on that of a `tokenloom up`.

    Raises:
        TokenloomError: there is no server, or it refuses the deployments.
    """
    from tokenloom.server.known_server import POOL, explaining_server_errors, heartbeat_seconds, known_url

    url = known_url()
    if url is None:
        raise TokenloomError("no Prefect server: set PREFECT_API_URL, or run `tokenloom up`, which also deploys")
    from tokenloom.server.deployments import NAMES, deploy_all

    heartbeat = heartbeat_seconds(url)
    with explaining_server_errors(url):
        deploy_all(url, heartbeat)
    names = [name.partition("/")[2] for name in NAMES]
    out.line(f"deployed {', '.join(names)} to {url}, work pool {POOL}")
    out.line(f"a run without a heartbeat for {3 * heartbeat} s counts as dead")
    out.line(f"next: prefect worker start --pool {POOL}")
    return DeployResult(url, list(NAMES))
