"""Prefect's server, which refuses what pages of other addresses send, and whose own load nothing from other hosts.

Any page in a browser of this machine can send requests to 127.0.0.1, and the name of its site can point there. CORS, a
setting of Prefect, only keeps such a page from reading the answers, and WebSockets ignore it. So a request is refused
if its Host is not a name of the server, or its Origin, which browsers send and other programs don't, is another page.
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

from fastapi.datastructures import Headers
from fastapi.responses import PlainTextResponse
from starlette.websockets import WebSocketClose

from tokenloom.server.store_pages import with_store_pages

HOSTS = "TOKENLOOM_UP_HOSTS"  # more names, separated by commas: that of a proxy in front of the server, for example
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_FOREIGN_HOST = (
    "refused: the server does not know the host name of this address; use 127.0.0.1 or localhost, or start the server "
    f"with {HOSTS}=NAME\n"
)
# Prefect's UI loads settings from a server of Amplitude, and the logos of blocks from another host.
# No page may show a form of it in a frame, where clicks could be led onto it.
_POLICY = b"default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'none'"
_FOREIGN_PAGE = "refused: a page of another address sent this; a proxy must pass the Host header on unchanged\n"


def for_own_pages(app: Any) -> Any:
    """Return the ASGI application without the requests of other pages; loopback hosts and HOSTS may have any port."""
    names = _LOOPBACK | {name.strip().lower() for name in os.environ.get(HOSTS, "").split(",") if name.strip()}

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        answer = app
        if scope["type"] != "lifespan" and (why := _refusal(Headers(scope=scope), names)):
            answer = WebSocketClose() if scope["type"] == "websocket" else PlainTextResponse(why, 403)
        await answer(scope, receive, send)

    return serve


def prefect_app() -> Any:
    """Return Prefect's server without such requests: `uvicorn --factory tokenloom.server.own_pages:prefect_app`.

    That of `tokenloom up` also serves the pages of stores.
    """
    from prefect.server.api.server import create_app  # late: it reads the settings

    from tokenloom.server.waiting_sqlite import use_waiting_sqlite

    use_waiting_sqlite()
    return for_own_pages(with_store_pages(_with_policy(create_app())))


def _with_policy(app: Any) -> Any:
    """Return the ASGI application with a Content-Security-Policy in every response."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        async def send_with_policy(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"content-security-policy", _POLICY)]
            await send(message)

        await app(scope, receive, send_with_policy)

    return serve


def _refusal(headers: Headers, names: frozenset[str]) -> str | None:
    hosts, origins = headers.getlist("host"), headers.getlist("origin")
    if len(hosts) != 1 or _name_in(hosts[0]) not in names:
        return _FOREIGN_HOST
    own = {f"{scheme}://{hosts[0].lower()}" for scheme in ("http", "https")}
    return _FOREIGN_PAGE if set(origins) - own else None


def _name_in(host: str) -> str | None:
    """Return the name in a Host header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:  # unbalanced brackets
        return None
