"""The site has every page in its navigation, and links that lead to pages or to GitHub."""

from __future__ import annotations

import re
from pathlib import Path

from scripts.site import OF_THE_ROOT, place_of
from tests.docs.reference import GENERATED
from tokenloom.cli.commands.start import starter_spec

_ROOT = Path(__file__).parents[2]


def test_every_page_is_in_the_navigation_once() -> None:
    docs = _ROOT / "docs"
    found = [place_of(page.relative_to(_ROOT)) for page in [*docs.rglob("*.md"), *GENERATED]]
    pages = {place.as_posix() for place in found if place} | {*OF_THE_ROOT.values()}
    named = re.findall(r"^ *- .*?([\w/-]+\.md)$", (_ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(pages)


def test_the_starter_spec_names_pages_and_where_they_are() -> None:
    assert re.findall(r"^site_url: (.*)$", (_ROOT / "mkdocs.yml").read_text(), re.MULTILINE)[0] in starter_spec()
    pages = re.findall(r"docs/[\w/-]+\.md", starter_spec())
    assert pages
    assert all((_ROOT / page).exists() for page in pages)
