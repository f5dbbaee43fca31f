"""The process of a Prefect server that tokenloom starts: `python -m tokenloom.server.server_process DESCRIPTOR`.

DESCRIPTOR is the file descriptor of the listening socket.

This is Prefect's own server with changes: it ends with its parent, it refuses pages of other addresses, its own load
nothing from other hosts, it serves only the second of Prefect's two UIs and, for `tokenloom up`, the pages of stores,
and its SQLite transactions wait for each other.
"""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import prefect
import uvicorn
from fastapi.datastructures import Headers
from fastapi.responses import RedirectResponse
from prefect.server.api.server import create_app
from prefect.server.database.configurations import AioSqliteConfiguration
from prefect.server.database.dependencies import set_database_config
from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL
from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction

from tokenloom.server.own_pages import for_own_pages
from tokenloom.server.process_tree import end_with_parent
from tokenloom.server.store_pages import with_store_pages

# The second UI loads settings from a server of Amplitude, and the logos of blocks from another host.
# No page may show a form of it in a frame, where clicks could be led onto it.
_POLICY = b"default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'none'"


def _with_policy(app: Any) -> Any:
    """Return the ASGI application with a Content-Security-Policy in every response."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        async def send_with_policy(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"content-security-policy", _POLICY)]
            await send(message)

        await app(scope, receive, send_with_policy)

    return serve


def _with_second_ui(app: Any) -> Any:
    """Return the ASGI application with the first UI's pages redirected to the second UI.

    Prefect prints URLs of the first UI, whose form shows the sources of a spec as a box of JSON. Both UIs have the same
    paths, the second one below /v2.
    """

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["method"] == "GET" and _is_page_of_first_ui(scope):
            query = b"?" + scope["query_string"] if scope["query_string"] else b""
            await RedirectResponse((b"/v2" + scope["raw_path"] + query).decode("latin-1"))(scope, receive, send)
        else:
            await app(scope, receive, send)

    return serve


def _is_page_of_first_ui(scope: Any) -> bool:
    accepted = ",".join(Headers(scope=scope).getlist("accept"))
    first = scope["path"].split("/")[1]
    return "text/html" in accepted and first not in ("api", "v2", "docs", "redoc")


class _WaitingSqlite(AioSqliteConfiguration):
    """Prefect's SQLite database, with transactions that take the write lock when they begin.

    Prefect begins most transactions without the lock. SQLite then refuses a write at once ("database is locked") if
    another transaction wrote since this one first read, for example a worker's heartbeat.
    """

    @asynccontextmanager
    async def begin_transaction(
        self, session: AsyncSession, with_for_update: bool = False
    ) -> AsyncGenerator[AsyncSessionTransaction, None]:
        async with super().begin_transaction(session, with_for_update=True) as transaction:
            yield transaction


def _use_waiting_sqlite() -> None:
    url = PREFECT_API_DATABASE_CONNECTION_URL.value()
    if url and url.startswith("sqlite"):
        set_database_config(_WaitingSqlite(connection_url=url))


def _disable_first_ui() -> None:
    prefect.__ui_static_path__ = Path(__file__, "none")  # a path below a file never exists, so Prefect skips this UI


def is_not_late_crash_report(record: logging.LogRecord) -> bool:
    """Return False for the line that the automation of dead runs writes about a run that has ended properly.

    A run's last heartbeat often reaches the server after the run's final state. The server then waits for another
    heartbeat, asks for the state Crashed, and refuses it: as it should, so there is nothing to report.
    """
    return "already in terminal state" not in record.getMessage()


if __name__ == "__main__":
    end_with_parent(seconds=10)
    _use_waiting_sqlite()
    _disable_first_ui()
    logging.getLogger("prefect.server.events.actions").addFilter(is_not_late_crash_report)
    app = for_own_pages(with_store_pages(_with_policy(_with_second_ui(create_app()))))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    # uvicorn's own `fd` takes the socket for one of Unix, without TCP_NODELAY: every answer would take 40 ms longer.
    server.run(sockets=[socket.socket(fileno=int(sys.argv[1]))])
    sys.exit(not server.started)
