"""benchmarks/chart.py draws the newest results of build.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

_ROOT = Path(__file__).parents[2]
_FOLDER = _ROOT / "benchmarks"


@pytest.fixture(autouse=True)
def _as_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(_FOLDER)  # as for a program that is run: they share modules


def _result(tokenizer: str, date: str, rates: dict[str, float], **details: Any) -> dict[str, Any]:
    figures = [{"name": name, "values": [rate]} for name, rate in rates.items()]
    ratios = [{"name": f"tokenloom / {name}", "values": [rates["tokenloom"] / rate]} for name, rate in rates.items()]
    made = {"benchmark": "build", "text_mb": 1.0, "text_bytes": None, "rounds": 5, "workers": 2, "cores": 2}
    versions: dict[str, dict[str, str]] = {name: {} for name in rates}
    return made | {"tokenizer": tokenizer, "date": date, "figures": figures + ratios, "versions": versions} | details


def test_the_chart_shows_the_newest_result_of_each_tokenizer(tmp_path: Path) -> None:
    from chart import draw, newest_results

    results = [
        _result("gpt2", "2026-01-02", {"tokenloom": 8.0, "bare": 4.0, "hf": 2.0}),
        _result("gpt2", "2026-01-01", {"tokenloom": 7.0, "hf": 2.0}),
        _result("gpt2", "2026-01-02", {"tokenloom": 6.0, "hf": 2.0}, text_mb=0.5),
        _result("gpt2", "2026-01-03", {"tokenloom": 5.0, "hf": 2.0}, text_bytes=200),
        _result("gpt2", "2026-01-03", {"tokenloom": 4.0, "bare": 2.0}),  # no peer
        _result("gpt2", "2026-01-03", {"tokenloom": 9.0, "hf": 2.0}, rounds=4),
        _result("a/tokenizer.json", "2026-01-01", {"tokenloom": 4.0, "litdata": 1.0}),
        {"figures": [], "date": "2026-01-03"},  # another benchmark's
    ]
    for i, result in enumerate(results):
        (tmp_path / f"{i}.json").write_text(json.dumps(result))
    chosen = newest_results(tmp_path)
    assert chosen == [results[0], results[6]]
    root = ElementTree.fromstring(draw(chosen))
    widths = [float(node.attrib["width"]) for node in root if node.tag.endswith("}rect")][1:]  # the first is the ground
    assert widths == pytest.approx([widths[0] / divisor for divisor in (1, 2, 4, 2, 8)], abs=0.1)  # one scale for both
    assert [node.text for node in root].count("4.0") == 2  # hf, LitData


def test_the_chart_in_the_documentation_is_that_of_the_results(tmp_path: Path) -> None:
    if not (_FOLDER / "results").is_dir():
        pytest.skip("there are no results to draw")
    made = tmp_path / "speed.svg"
    subprocess.run([sys.executable, str(_FOLDER / "chart.py"), "--output", str(made)], check=True)
    assert made.read_text() == (_ROOT / "docs/images/speed.svg").read_text()
