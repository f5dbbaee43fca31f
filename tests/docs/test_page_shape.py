"""Every page but the home of the site, and those that programs write, is short and begins with its question."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.reference import GENERATED

_DOCS = Path(__file__).parents[2] / "docs"
_MOST_LINES = 390
_OTHERS = {_DOCS / "index.md", *GENERATED}
_PAGES = sorted(page for page in _DOCS.rglob("*.md") if "lessons" not in page.parts and page not in _OTHERS)
_ASKING = ("start", "guides", "concepts")  # their pages ask; others may state what they answer


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.relative_to(_DOCS).as_posix())
def test_a_page_is_short_and_says_in_its_first_two_lines_what_it_answers(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= _MOST_LINES, "split it along the reader's questions"
    assert re.match(r"# \w", lines[0]) and not lines[1]
    first = " ".join(lines[2:4]).strip()
    assert re.match(r"[A-Z`(\[][^\n]*[.?:]", first), f"no sentence: {first}"
    assert "?" in lines[0] + first or page.relative_to(_DOCS).parts[0] not in _ASKING, f"no question: {first}"
