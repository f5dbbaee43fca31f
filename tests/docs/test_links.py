"""Links and names of files in the pages lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.reference_pages.markdown import anchor
from tests.docs.reference import GENERATED, generated_pages

_ROOT = Path(__file__).parents[2]
_NAMES_OTHERS = "docs/guides/extending"  # files that a reader creates
_PAGES = sorted({*_ROOT.glob("*.md"), *_ROOT.glob("docs/**/*.md"), *GENERATED})
_FOLDERS = "benchmarks|docs|examples|flows|storage|tasks|tests|tokenloom"


def _text(page: Path) -> str:
    """Return the text of a page; one that is generated need not have been written."""
    return generated_pages()[page] if page in GENERATED else page.read_text(encoding="utf-8")


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", _text(page), re.MULTILINE)
    return set(map(anchor, headings))


def _dead(page: Path) -> list[str]:
    """Return the links of a page that lead nowhere."""
    dead = []
    prose = re.sub(r"^```.*?^```$|`[^`\n]*`", "", _text(page), flags=re.DOTALL | re.MULTILINE)
    for name, part in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", prose):
        target = (page.parent / name).resolve() if name else page
        exists = target.exists() or target in GENERATED
        if not exists or (part and part not in _anchors(target)):
            dead.append(f"{name}#{part}")
    return dead


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.relative_to(_ROOT).as_posix())
def test_every_link_leads_to_a_file_and_a_heading_of_it(page: Path) -> None:
    assert _dead(page) == []


def test_every_file_that_a_page_or_a_comment_names_exists() -> None:
    modules = [path for folder in _FOLDERS.split("|") for path in _ROOT.glob(f"{folder}/**/*.py")]
    pattern = re.compile(rf"(?<![\w/.{{}}-])(?:{_FOLDERS})/[\w/]+\.(?:py|md|svg|yaml)\b")
    missing = [
        f"{path.relative_to(_ROOT)}: {name}"
        for path in [*_PAGES, *modules]
        if not path.relative_to(_ROOT).as_posix().startswith(_NAMES_OTHERS)
        for name in pattern.findall(_text(path))
        if not (_ROOT / name).exists() and not (_ROOT / "tests" / name).exists()
    ]
    assert missing == []
