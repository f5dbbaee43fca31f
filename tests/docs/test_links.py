"""Links and names of files in the pages lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_NAMES_OTHERS = ("docs/project/notebook/", "docs/guides/extending")  # old notes, and files that a reader creates
_PAGES = sorted([*_ROOT.glob("*.md"), *_ROOT.glob("docs/**/*.md")])
_FOLDERS = "benchmarks|docs|examples|flows|storage|tasks|tests|tokenloom"


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.relative_to(_ROOT).as_posix())
def test_every_link_leads_to_a_file_and_a_heading_of_it(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text(encoding="utf-8"))
    for name, anchor in links:
        target = page.parent / name if name else page
        assert target.exists(), name
        assert not anchor or anchor in _anchors(target), f"{name}#{anchor}"


def test_every_file_that_a_page_or_a_comment_names_exists() -> None:
    modules = [path for folder in _FOLDERS.split("|") for path in _ROOT.glob(f"{folder}/**/*.py")]
    pattern = re.compile(rf"(?<![\w/.{{}}-])(?:{_FOLDERS})/[\w/]+\.(?:py|md|svg|yaml)\b")
    missing = [
        f"{path.relative_to(_ROOT)}: {name}"
        for path in [*_PAGES, *modules]
        if not path.relative_to(_ROOT).as_posix().startswith(_NAMES_OTHERS)
        for name in pattern.findall(path.read_text(encoding="utf-8"))
        if not (_ROOT / name).exists() and not (_ROOT / "tests" / name).exists()
    ]
    assert missing == []
