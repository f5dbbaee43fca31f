"""Prefect's server as `tokenloom up` runs it: for its own pages alone, with the pages of stores, and a patient SQLite.

Any page in a browser of this machine can send requests to 127.0.0.1, and the name of its site can point there. CORS, a
setting of Prefect, only keeps such a page from reading the answers, and WebSockets ignore it. So a request is refused
if its Host is not a name of the server, or its Origin, which browsers send and other programs don't, is another page.

The pages of local stores are catalogues and reports, read-only, at `/stores/KEY/index.html` or
`/stores/KEY/DATASET/reports/VERSION.html`, of a store that a run has noted (flows/store_links.py). Names are matched
against their patterns, so no path leaves the store; a link that does is not followed. The pages come from a store and
share their origin with Prefect's API, so a policy forbids them to run scripts or request anything.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fastapi.datastructures import Headers
from fastapi.responses import HTMLResponse, PlainTextResponse, Response
from starlette.websockets import WebSocketClose

from tokenloom.flows.store_links import PREFIX, STORES, noted_stores
from tokenloom.storage.formats.manifest import CATALOGUE, NAME_PATTERN, VERSION_PATTERN
from tokenloom.storage.stores.local_files import open_regular
from tokenloom.storage.versions.published import report_path

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
_HEADERS = {
    "content-security-policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}
_LARGEST = 2**24  # bytes of a page; ours have at most a million


def for_own_pages(app: Any) -> Any:
    """Return the ASGI application without the requests of other pages, and with a policy in each response.

    Loopback hosts and HOSTS may have any port.
    """
    names = _LOOPBACK | {name.strip().lower() for name in os.environ.get(HOSTS, "").split(",") if name.strip()}

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        async def send_with_policy(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"content-security-policy", _POLICY)]
            await send(message)

        answer = app
        if scope["type"] != "lifespan" and (why := _refusal(Headers(scope=scope), names)):
            answer = WebSocketClose() if scope["type"] == "websocket" else PlainTextResponse(why, 403)
        await answer(scope, receive, send_with_policy)

    return serve


def prefect_app() -> Any:
    """Return Prefect's server without such requests: `uvicorn --factory tokenloom.server.app:prefect_app`.

    That of `tokenloom up` also serves the pages of stores.
    """
    from prefect.server.api.server import create_app  # late: it takes two seconds, and reads the settings

    _lock_sqlite_early()
    return for_own_pages(with_store_pages(create_app()))


def _lock_sqlite_early() -> None:
    """Let transactions of Prefect's SQLite database take the write lock when they begin.

    Prefect begins most of them without it. SQLite then refuses a write at once ("database is locked") if another
    transaction wrote since this one first read, for example a worker's heartbeat. Prefect's clients try again, but its
    UI does not: the form then says "Unknown error while creating flow run".
    """
    from prefect.server.database.configurations import AioSqliteConfiguration
    from prefect.server.database.dependencies import set_database_config
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL

    class LockingSqlite(AioSqliteConfiguration):
        def begin_transaction(self, session: Any, with_for_update: bool = False) -> Any:
            return super().begin_transaction(session, with_for_update=True)

    url = PREFECT_API_DATABASE_CONNECTION_URL.value()
    if url and url.startswith("sqlite"):
        set_database_config(LockingSqlite(connection_url=url))


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


def with_store_pages(app: Any) -> Any:
    """Return the ASGI application with the pages of noted stores; unchanged if `tokenloom up` did not start it."""
    folder = os.environ.get(STORES)
    if not folder:
        return app

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or not f"{path}/".startswith(f"{PREFIX}/"):
            await app(scope, receive, send)
            return
        page = page_at(Path(folder), path.removeprefix(PREFIX)) if scope["method"] in ("GET", "HEAD") else None
        if page is None:
            response: Response = PlainTextResponse("no such page\n", 404, _HEADERS)
        else:
            response = HTMLResponse(page, headers=_HEADERS)
        await response(scope, receive, send)

    return serve


def page_at(folder: Path, path: str) -> bytes | None:
    """Return the page at a path below PREFIX; None if there is none.

    Args:
        folder: the folder of the notes.
        path: "/KEY/index.html", for example; "" for the list of the stores.
    """
    stores = noted_stores(folder)
    if path in ("", "/"):
        return _list(stores)
    _, key, *rest = path.split("/")
    return _read(stores[key], rest) if key in stores else None


def _read(root: Path, names: list[str]) -> bytes | None:
    if names != [CATALOGUE] and not _is_report(names):
        return None
    place = root.joinpath(*names)
    try:
        with open_regular(place) as file:
            is_inside = place.resolve().is_relative_to(root.resolve())
            return file.read() if is_inside and os.fstat(file.fileno()).st_size <= _LARGEST else None
    except OSError:
        return None


def _is_report(names: list[str]) -> bool:
    """Return whether names are those of a dataset, its folder of reports, and a report."""
    dataset, version = names[0] if names else "", names[-1].removesuffix(".html") if names else ""
    is_named = NAME_PATTERN.match(dataset) and VERSION_PATTERN.match(version)
    return bool(is_named) and names[1:] == report_path(version).split("/")


def _list(stores: dict[str, Path]) -> bytes:
    """Return a page that links the catalogues of the stores."""
    from tokenloom.tasks.report.templates import render  # late: it brings Jinja

    keys = {str(root): key for key, root in stores.items() if (root / CATALOGUE).is_file()}
    page = render(
        "stores.html",
        stores={root: (list(filter(NAME_PATTERN.match, os.listdir(root))), _changed(root)) for root in keys},
        links={root: f"{PREFIX}/{key}/{CATALOGUE}" for root, key in keys.items()},
    )
    return page.encode()


def _changed(root: str) -> str:
    return f"{datetime.fromtimestamp((Path(root) / CATALOGUE).stat().st_mtime, UTC):%Y-%m-%d %H:%M}"
