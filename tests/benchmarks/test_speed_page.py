"""The tables of docs/comparison/speed.md are those of the results that it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _as_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(_ROOT / "benchmarks")  # as for a program that is run: they share modules


def test_every_figure_of_the_page_is_in_a_result() -> None:
    from speed_page import written

    page = (_ROOT / "docs/comparison/speed.md").read_text(encoding="utf-8")
    assert written(page) == page, "run: python benchmarks/speed_page.py"
    outside = re.sub(r"<!-- (?:build|chat|feed) .*?<!-- end -->|```.*?```", "", page, flags=re.DOTALL)
    assert re.findall(r"\d+\.\d+ |\d+ times", outside) == []
