"""The built site: no warning, no dead link, nothing from another host, and every page as GitHub shows it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

from markdown_it import MarkdownIt

from scripts.site import ROOT, build_with_mkdocs
from tests.site.html import Document

_BASE = "https://tokenloom.github.io/tokenloom/"  # mkdocs.yml's site_url: the page for missing pages has whole paths
_FRONT_MATTER = re.compile(r"\A---\n.*?^---\n", re.DOTALL | re.MULTILINE)
_COMPARED = ("h1", "h2", "h3", "h4", "ol", "ul", "li", "pre", "table", "tr", "blockquote", "img")


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


def test_a_page_has_the_same_headings_lists_and_tables_as_on_github(
    documents: dict[str, Document], build: tuple[Path, str], tmp_path: Path
) -> None:
    # The builders' Markdown wants lists indented by four spaces and a blank line before them; GitHub's does not.
    reader = MarkdownIt("commonmark").enable("table")
    different = {}
    pages = build[0].parent / "build/pages"
    for page in sorted(pages.rglob("*.md")):
        place = page.relative_to(pages)
        folder = place.parent if place.stem == "index" else place.with_suffix("")
        built = documents[(folder / "index.html").as_posix()]
        (tmp_path / "page.html").write_text(
            f"<article>{reader.render(_FRONT_MATTER.sub('', page.read_text('utf-8')))}</article>", "utf-8"
        )
        github = Document(tmp_path / "page.html")
        counts = {tag: (github.tags[tag], built.tags[tag]) for tag in _COMPARED}
        if found := {tag: both for tag, both in counts.items() if both[0] != both[1]}:
            different[place.as_posix()] = found
    assert different == {}
