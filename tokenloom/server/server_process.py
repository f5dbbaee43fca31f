"""The process of a Prefect server that tokenloom starts: `python -m tokenloom.server.server_process DESCRIPTOR`.

The descriptor is that of its listening socket.

It is Prefect's own server but for four things: it ends with its parent, its pages ask no other host, it has the second
of Prefect's two UIs alone, and its SQLite transactions wait for each other.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import prefect
import uvicorn
from prefect.server.api.server import create_app
from prefect.server.database.configurations import AioSqliteConfiguration

from tokenloom.server.orphans import follow_parent

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


def _with_second_ui(app: Any) -> Any:
    """Return the ASGI application with pages of the first UI redirected to those of the second.

    Prefect prints addresses of the first one, whose form has a box of JSON for the sources of a spec. Both have the
    same paths, the second one below /v2.
    """

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["method"] == "GET" and _is_page_of_first_ui(scope):
            query = b"?" + scope["query_string"] if scope["query_string"] else b""
            location = b"/v2" + scope.get("raw_path", scope["path"].encode()).partition(b"?")[0] + query
            await send({"type": "http.response.start", "status": 307, "headers": [(b"location", location)]})
            await send({"type": "http.response.body"})
        else:
            await app(scope, receive, send)

    return serve


def _is_page_of_first_ui(scope: Any) -> bool:
    accepted = b",".join(value for name, value in scope["headers"] if name == b"accept")
    first = scope["path"].split("/")[1]
    return b"text/html" in accepted and first not in ("api", "v2", "docs", "redoc")


def _leave_out_first_ui() -> None:
    prefect.__ui_static_path__ = Path(__file__, "none")  # nothing can exist below a file, so Prefect serves no such UI


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
    _leave_out_first_ui()
    uvicorn.run(_with_policy(_with_second_ui(create_app())), fd=int(sys.argv[1]), log_level="error")
