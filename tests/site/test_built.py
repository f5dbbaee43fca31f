"""The built site: no warning, no dead link, nothing from another host."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest

from scripts.site import ROOT, build_with_mkdocs

_BASE = "https://tokenloom.github.io/tokenloom/"  # mkdocs.yml's site_url: the page for missing pages has whole paths

_LOADING = {"img": "src", "script": "src", "source": "srcset", "iframe": "src", "video": "src", "audio": "src"}
_LOADING_RELATIONS = {"icon", "modulepreload", "preconnect", "preload", "prefetch", "stylesheet"}


class Document(HTMLParser):
    """The links, anchors and loaded files of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.loaded: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag links to, loads or names."""
        values = {name: value or "" for name, value in attrs}
        self.anchors.add(values.get("id", ""))
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if values.get(_LOADING.get(tag, "")):
            self.loaded.append(values[_LOADING[tag]])
        if tag == "link" and _LOADING_RELATIONS.intersection(values.get("rel", "").split()):
            self.loaded.append(values["href"])


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of the site and what its builder complained of."""
    pytest.importorskip("zensical", reason="the site is built by: pip install -e '.[docs]', on Python 3.11.5 or newer")
    folder = tmp_path_factory.mktemp("built")
    command = [sys.executable, "scripts/site.py", "--folder", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return folder / "site", done.stderr


@pytest.fixture(scope="module")
def documents(build: tuple[Path, str]) -> dict[str, Document]:
    """The pages of the site, parsed, by their paths."""
    site, _ = build
    return {path.relative_to(site).as_posix(): Document(path) for path in sorted(site.rglob("*.html"))}


def test_zensical_builds_the_site_without_a_warning(build: tuple[Path, str]) -> None:
    site, complaints = build
    assert complaints == ""
    assert (site / "index.html").exists()


def test_mkdocs_builds_the_same_pages_without_a_warning(build: tuple[Path, str], tmp_path: Path) -> None:
    shutil.copytree(build[0].parent / "build", tmp_path / "build")
    build_with_mkdocs(Path(shutil.copy(ROOT / "mkdocs.yml", tmp_path)))
    for path in (tmp_path / "site").rglob("*.html"):
        assert [url for url in Document(path).loaded if urlsplit(url).netloc] == [], path


def test_every_link_leads_to_a_page_and_an_anchor_of_it(
    documents: dict[str, Document], build: tuple[Path, str]
) -> None:
    dead = []
    for name, document in documents.items():
        for link in [*document.links, *document.loaded]:
            url = urlsplit(urljoin(_BASE + name.removesuffix("index.html"), link))
            if not url.geturl().startswith(_BASE):
                continue
            target = unquote(url.path.removeprefix(urlsplit(_BASE).path))
            target += "index.html" if not target or target.endswith("/") else ""
            anchors = documents[target].anchors if target in documents else set()
            if not (build[0] / target).is_file() or (url.fragment and unquote(url.fragment) not in anchors):
                dead.append(f"{name}: {link}")
    assert len(documents) > 20
    assert dead == []


def test_no_page_loads_anything_from_another_host(documents: dict[str, Document], build: tuple[Path, str]) -> None:
    for name, document in documents.items():
        assert [url for url in document.loaded if urlsplit(url).netloc] == [], name
    for style in build[0].rglob("*.css"):
        assert re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", style.read_text(encoding="utf-8")) == [], style
