"""The pages of local stores on the server of `tokenloom up`: catalogues and reports, read-only, and nothing else.

A path is `/stores/KEY/index.html` or `/stores/KEY/DATASET/reports/VERSION.html`, of a store that a run has noted
(flows/store_links.py). Names are matched against their patterns, so no path leaves the store; a link that does is
not followed. The pages come from a store and share their origin with Prefect's API, so a policy forbids them to run
scripts or request anything.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastapi.responses import HTMLResponse, PlainTextResponse, Response

from tokenloom.flows.store_links import PREFIX, STORES, noted_stores
from tokenloom.storage.formats.names import CATALOGUE, NAME_PATTERN, VERSION_PATTERN
from tokenloom.storage.stores.local import LocalStore
from tokenloom.storage.stores.local_files import open_regular
from tokenloom.storage.versions.published import report_path

_HEADERS = {
    "content-security-policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}
_LARGEST = 2**24  # bytes of a page; ours have at most a million


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
        folder: of the notes.
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

    shown = {str(root): (key, root) for key, root in stores.items() if (root / CATALOGUE).is_file()}
    page = render(
        "stores.html",
        max_rows=len(shown),
        stores={name: (_datasets(root), _changed(root)) for name, (_, root) in shown.items()},
        links={name: f"{PREFIX}/{key}/{CATALOGUE}" for name, (key, _) in shown.items()},
    )
    return page.encode()


def _datasets(root: Path) -> list[str]:
    return list(filter(NAME_PATTERN.match, LocalStore(root).names("")))


def _changed(root: Path) -> str:
    return f"{datetime.fromtimestamp((root / CATALOGUE).stat().st_mtime, UTC):%Y-%m-%d %H:%M}"
