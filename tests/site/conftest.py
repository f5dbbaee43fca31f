"""The site, built once and served, and a browser on it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.servers.browser import Page, chromium
from tests.site.html import Document

_ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="package")
def build(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of the site and what its builder complained of."""
    pytest.importorskip("zensical", reason="the site is built by: pip install -e '.[docs]', on Python 3.11.5 or newer")
    folder = tmp_path_factory.mktemp("built")
    command = [sys.executable, "scripts/site.py", "--folder", str(folder)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    return folder / "site", done.stderr


@pytest.fixture(scope="package")
def documents(build: tuple[Path, str]) -> dict[str, Document]:
    """The pages of the site, parsed, by their paths."""
    site, _ = build
    return {path.relative_to(site).as_posix(): Document(path) for path in sorted(site.rglob("*.html"))}


class _Handler(SimpleHTTPRequestHandler):
    """Serves the site below /tokenloom/, as its public address does, and says nothing."""

    def translate_path(self, path: str) -> str:
        return super().translate_path(path.removeprefix("/tokenloom"))

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(site: Path) -> Iterator[str]:
    """Serve a built site on this machine, and give its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/tokenloom/"
        server.shutdown()


@pytest.fixture(scope="package")
def site_url(build: tuple[Path, str]) -> Iterator[str]:
    """The URL of the site."""
    with serving(build[0]) as url:
        yield url


@pytest.fixture(scope="package")
def browser(site_url: str) -> Iterator[Page]:
    """A browser that can reach only this machine."""
    with chromium(site_url) as page:
        yield page
