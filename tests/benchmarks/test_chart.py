"""benchmarks/chart.py draws the newest results of build.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_FOLDER = _ROOT / "benchmarks"


def test_the_chart_in_the_documentation_is_that_of_the_results(tmp_path: Path) -> None:
    if not (_FOLDER / "results").is_dir():
        pytest.skip("there are no results to draw")
    made = tmp_path / "speed.svg"
    subprocess.run([sys.executable, str(_FOLDER / "chart.py"), "--output", str(made)], check=True)
    assert made.read_text() == (_ROOT / "docs/images/speed.svg").read_text()
