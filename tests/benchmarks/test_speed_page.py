"""The tables of docs/comparison/speed.md are those of the results that it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _as_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(_ROOT / "benchmarks")  # as for a program that is run: they share modules


def _page() -> str:
    if not (_ROOT / "benchmarks/results").is_dir():
        pytest.skip("there are no results")
    return (_ROOT / "docs/comparison/speed.md").read_text(encoding="utf-8")


def test_every_figure_of_the_page_is_in_a_result() -> None:
    from speed_page import written

    page = _page()
    assert written(page) == page, "run: python benchmarks/speed_page.py"
    outside = re.sub(r"<!-- (?:build|chat|feed) .*?<!-- end -->|```.*?```", "", page, flags=re.DOTALL)
    assert re.findall(r"\d+\.\d+ |\d+ times", outside) == []


def test_one_run_with_all_tools_takes_the_place_of_the_others() -> None:
    from speed_page import written

    name = "2026-11-26-o200k_base-320mb-first.json"
    page = written(_page(), name)
    assert re.findall(r"<!-- build (\S+) -->", page) == [name]
    assert page.count("<!-- chat ") == page.count("<!-- feed ") == 1
    assert "o200k_base, 320 MB in 20,332 documents" in page
    assert "\n\n\n" not in page
    assert written(page) == page
