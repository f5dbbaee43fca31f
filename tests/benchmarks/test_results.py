"""What the pages of measurements show is in the results that they name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_FOLDER = _ROOT / "benchmarks"


def test_every_figure_of_the_pages_is_in_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(_FOLDER)  # as for a program that is run: they share modules
    from speed_page import BLOCK, PAGES, written

    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert written(page) == text, "run: python benchmarks/speed_page.py"
        outside = re.sub(r"```.*?```", "", BLOCK.sub("", text), flags=re.DOTALL)
        assert re.findall(r"\d+\.\d+ |\d+ times", outside) == []


def test_the_chart_of_the_page_is_that_of_the_results(tmp_path: Path) -> None:
    made = tmp_path / "speed.svg"
    subprocess.run([sys.executable, str(_FOLDER / "chart.py"), "--output", str(made)], check=True)
    assert made.read_text() == (_ROOT / "docs/images/speed.svg").read_text()
