"""The navigation of the site, in mkdocs.yml, leads to every page."""

from __future__ import annotations

import re
from pathlib import Path

from scripts.site import OF_THE_ROOT
from tests.docs.reference import GENERATED

_ROOT = Path(__file__).parents[2]


def test_every_page_is_in_the_navigation_once() -> None:
    docs = _ROOT / "docs"
    pages = {page.relative_to(docs).as_posix() for page in [*docs.rglob("*.md"), *GENERATED]} | {*OF_THE_ROOT.values()}
    named = re.findall(r"^ *- .*?([\w/-]+\.md)$", (_ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(pages)
