"""docs/comparison/index.md: each "yes" of ours names a test, each entry of others has a source."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_PAGE = (_ROOT / "docs/comparison/index.md").read_text(encoding="utf-8")
_THEMES = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", _PAGE, re.DOTALL | re.MULTILINE))
_OURS = "**tokenloom**"


def _table(theme: str) -> dict[str, list[str]]:
    """Return the cells of the table of a theme, by the first cell of the row; "" has the names of the columns."""
    rows = [line.strip("|").split("|") for line in _THEMES[theme].splitlines() if line.startswith("|")]
    return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows if "---" not in row[0]}


_TABLES = [theme for theme in _THEMES if _OURS in _THEMES[theme]]


@pytest.mark.parametrize("theme", _TABLES)
def test_each_yes_of_ours_names_a_test(theme: str) -> None:
    """tests/docs/test_concepts.py checks that the tests exist."""
    table = _table(theme)
    named = re.findall(r"^- (.*?): `tests/\S+::test_\w+`$", _THEMES[theme], re.MULTILINE)
    assert named == [column for column, cell in zip(table[""], table[_OURS], strict=True) if cell != "no"]
