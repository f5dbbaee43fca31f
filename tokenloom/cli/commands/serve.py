"""`tokenloom up` and `deploy`: a Prefect server on this machine, and the deployments on a running one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

from tokenloom.cli.arguments import Argument, integer_in, positive
from tokenloom.cli.output import Output, Result
from tokenloom.errors import TokenloomError
from tokenloom.flows.store_links import PREFIX
from tokenloom.server.known_server import POOL, default_home, explaining_server_errors, known_url


def up(
    *,
    folder: Annotated[str | None, Argument("DIR")] = None,
    port: Annotated[int, Argument("PORT", integer_in(0, 65_535))] = 4200,
    runs: Annotated[int, Argument("N", positive)] = 2,
    out: Output,
) -> Result:
    """Start a Prefect server with the deployments and a worker.

    Ctrl-C stops all of them.

    Args:
        folder: folder of the database, storage and logs (default: ~/.tokenloom)
        port: port on 127.0.0.1; 0: a free one
        runs: how many flow runs run at a time

    Example:
        up --port 4200
    """
    from tokenloom.server.up import run_services

    home = Path(folder).expanduser().absolute() if folder else default_home()

    def show(url: str, pages: dict[str, str]) -> None:
        address = url.removesuffix("/api")
        shown = {
            "Prefect UI": address,
            **pages,
            "catalogues": f"{address}{PREFIX}",
            "data and logs": str(home),
            "relative paths": f"from {os.environ['TOKENLOOM_HOME']} (TOKENLOOM_HOME)",
        }
        for name, text in shown.items():
            out.line(f"{name:<15} {text}")
        out.line("Ctrl-C stops everything")
        sys.stdout.flush()

    return Result({"url": run_services(home, port, runs, show), "folder": str(home)})


def deploy(*, out: Output) -> Result:
    """Create the deployments on a running Prefect server.

    PREFECT_API_URL names the server. `prefect worker start --pool tokenloom` then starts a worker.

    Example:
        deploy
    """
    url = known_url()
    if url is None:
        raise TokenloomError("no Prefect server: set PREFECT_API_URL, or run `tokenloom up`, which also deploys")
    from tokenloom.server.deployments import NAMES, deploy_all

    with explaining_server_errors(url):
        heartbeat = deploy_all(url)
    out.line(f"deployed {', '.join(name.partition('/')[2] for name in NAMES.values())} to {url}, work pool {POOL}")
    out.line(f"a run without a heartbeat for {3 * heartbeat} s counts as dead")
    out.line(f"next: prefect worker start --pool {POOL}")
    return Result({"url": url, "deployments": list(NAMES.values())})
