"""The pages of stores on the server of `tokenloom up`: catalogues and reports, and nothing else of the machine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from tokenloom.flows.store_links import STORES, noted_stores, page_url
from tokenloom.server.app import page_at, with_store_pages
from tokenloom.storage.stores.local import LocalStore

_VERSION = "0123456789abcdef"


async def _prefect(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 299, "headers": []})
    await send({"type": "http.response.body", "body": b"Prefect"})


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path]]:
    """The URL of a store with a catalogue, a report and files that are not to be shown; and the store."""
    monkeypatch.setenv(STORES, str(tmp_path / "notes"))
    root = tmp_path / "a store"
    reports = root / "news" / "reports"
    reports.mkdir(parents=True)
    (root / "index.html").write_text("catalogue")
    (reports / f"{_VERSION}.html").write_text("report")
    for secret in (tmp_path / "secret.html", root / "news" / "index.html", root / "secret", reports / "secret.html"):
        secret.write_text("secret")
    (reports / f"{_VERSION[::-1]}.html").symlink_to(tmp_path / "secret.html")
    os.mkfifo(reports / f"{'e' * 16}.html")
    store = LocalStore(root / "news")
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:4200/api"}):
        url = page_url(store, f"news/reports/{_VERSION}.html")
        assert url is not None
        yield url.removesuffix(f"/news/reports/{_VERSION}.html"), root


def _get(*urls: str, method: str = "GET") -> list[httpx.Response]:
    async def get() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(with_store_pages(_prefect))) as client:
            return [await client.request(method, url) for url in urls]

    return asyncio.run(get())


def test_catalogue_and_report_are_shown_and_may_run_nothing(served: tuple[str, Path]) -> None:
    url, root = served
    assert url.startswith("http://127.0.0.1:4200/stores/")
    pages = _get(f"{url}/index.html", f"{url}/news/reports/{_VERSION}.html", "http://127.0.0.1:4200/stores")
    assert [page.status_code for page in pages] == [200] * 3
    assert [page.text for page in pages[:2]] == ["catalogue", "report"]
    assert f'<a href="{httpx.URL(url).path}/index.html"><code>{root}</code></a>' in pages[2].text
    for page in pages:
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert page.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    (other,) = _get("http://127.0.0.1:4200/api/health")
    assert other.status_code == 299


def test_nothing_else_of_the_machine_is_shown(served: tuple[str, Path], tmp_path: Path) -> None:
    url, _ = served
    paths = [
        "", "/", "/news", "/news/", "/news/reports", "/news/reports/", "/secret", "/news/index.html", "/notes",
        "/news/reports/secret.html", f"/news/reports/{_VERSION[::-1]}.html", f"/news/reports/{'e' * 16}.html",
        "/../secret.html", "/%2e%2e/secret.html", "/..%2fsecret.html", "//etc/passwd", "/news/../index.html",
        f"/news//reports/{_VERSION}.html", f"/news/reports/{_VERSION}.html/", f"/news/reports/{_VERSION}.html%00",
        f"/%2e/reports/{_VERSION}.html", "/index.html/", f"/news/reports/../reports/{_VERSION}.html%0a",
    ]  # fmt: skip
    paths += [f"/../{'0' * 16}/index.html", f"/../../{tmp_path}/secret.html"]
    answers = _get(*(url + path for path in paths))
    # httpx joins ".." before it sends; a client that does not is page_at below
    shown = [path for path, page in zip(paths, answers, strict=True) if page.status_code == 200]
    assert set(shown) <= {"/news/../index.html"}
    assert all("secret" not in page.text for page in answers)
    key = "/" + url.rpartition("/")[2]
    assert page_at(tmp_path / "notes", f"{key}/index.html") == b"catalogue"
    assert [path for path in paths if page_at(tmp_path / "notes", key + unquote(path)) is not None] == []
    assert [page.status_code for page in _get(f"{url}/index.html", method="POST")] == [404]


def test_only_a_store_that_a_server_shows_has_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path / "store" / "news")
    monkeypatch.delenv(STORES, raising=False)
    assert page_url(store, "news/reports/x.html") is None
    assert with_store_pages(_prefect) is _prefect
    monkeypatch.setenv(STORES, str(tmp_path / "notes"))
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api"}):
        urls = {page_url(store, f"news/reports/{name}.html") for name in "ab"}
    assert len(urls) == 2
    assert list(noted_stores(tmp_path / "notes").values()) == [tmp_path / "store"]
