"""The process of a Prefect server that tokenloom starts: `python -m tokenloom.server_process DESCRIPTOR_OF_ITS_SOCKET`.

It is Prefect's own server but for three things: it ends with its parent, its pages ask no other host, and its SQLite
transactions wait for each other.
"""

from __future__ import annotations

import sys
from typing import Any

import uvicorn
from prefect.server.api.server import create_app
from prefect.server.database.configurations import AioSqliteConfiguration

from tokenloom.orphans import follow_parent

# One of Prefect's two UIs fetches settings from a server of Amplitude, and the logos of blocks lie elsewhere.
_POLICY = b"default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:"


def _with_policy(app: Any) -> Any:
    """Return the ASGI application with a Content-Security-Policy in every answer."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        async def send_with_policy(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"content-security-policy", _POLICY)]
            await send(message)

        await app(scope, receive, send_with_policy)

    return serve


def _let_transactions_wait() -> None:
    """Let every transaction take SQLite's lock at its beginning.

    SQLite refuses one at once ("database is locked") that writes after it has read and another one has written;
    Prefect begins many like that, such as the heartbeat of a worker.
    """
    begin = AioSqliteConfiguration.begin_transaction
    setattr(  # noqa: B010  (mypy knows a method by its assignment)
        AioSqliteConfiguration,
        "begin_transaction",
        lambda self, session, with_for_update=False: begin(self, session, with_for_update=True),
    )


if __name__ == "__main__":
    follow_parent(seconds=10)
    _let_transactions_wait()
    uvicorn.run(_with_policy(create_app()), fd=int(sys.argv[1]), log_level="error")
