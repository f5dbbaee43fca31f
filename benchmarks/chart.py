"""Draw the newest results of build.py as a chart: MB of text per second, by tool.

    python benchmarks/chart.py [--results benchmarks/results] [--output docs/images/speed.svg]

Of the results with a peer, whole files and at least LEAST_ROUNDS rounds, the newest of each tokenizer is drawn, and of
those of one day that with the most text. The bytes of the chart depend only on the results. Its background is light or
dark as the reader's system.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from build_tools import BARE, OURS, PEERS, REFERENCE
from tokenloom.wording import counted

ROOT = Path(__file__).parents[1]
LEAST_ROUNDS = 5  # a median of fewer is a matter of luck
TITLES = {
    OURS: "tokenloom, backend: auto",
    REFERENCE: "tokenloom, backend: reference",
    BARE: "only reading and encoding",
    "megatron-fast": "Megatron's preprocess_data_fast",
    "hf": "datasets map, tokenizers",
    "hf-tiktoken": "datasets map, tiktoken",
    "litdata": "LitData optimize",
    "datatrove": "datatrove, with its merger",
}
_KINDS = {OURS: "tokenloom", REFERENCE: "reference", BARE: "bare"}  # classes of _STYLE
_WIDTH, _LEFT, _BAR, _TIMES, _ROW, _HEAD, _TOP, _BOTTOM = 780, 230, 330, 750, 28, 46, 14, 34
_STYLE = """
    .back { fill: #ffffff; } text { fill: #1f2328; } .faint { fill: #59636e; font-size: 12px; }
    .other { fill: #9aa4af; } .bare { fill: #d1d9e0; } .tokenloom { fill: #0969da; } .reference { fill: #80ccff; }
    .strong { font-weight: 600; } .end { text-anchor: end; }
    @media (prefers-color-scheme: dark) {
      .back { fill: #0d1117; } text { fill: #f0f6fc; } .faint { fill: #9198a1; }
      .other { fill: #6e7681; } .bare { fill: #3d444d; } .tokenloom { fill: #4493f8; } .reference { fill: #1f4b8f; }
    }
"""


@dataclass(frozen=True)
class Bar:
    """A tool's median rate, and how many times as fast tokenloom is (the median within a round)."""

    name: str
    rate: float  # MB/s
    times: float


@dataclass(frozen=True)
class Panel:
    """The bars of one tokenizer, the fastest first."""

    title: str
    bars: list[Bar]


def newest_results(folder: Path) -> list[dict[str, Any]]:
    """Return the results to draw, by tokenizer; raises SystemExit if there are none."""
    chosen: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        if result.get("benchmark") == "build" and _is_drawn(result):
            tokenizer = result["tokenizer"]
            chosen[tokenizer] = max(chosen.get(tokenizer, result), result, key=_rank)
    if not chosen:
        raise SystemExit(
            f"{folder} has no result of build.py with a peer and {LEAST_ROUNDS} rounds; run it with --peer and --json"
        )
    return [chosen[tokenizer] for tokenizer in sorted(chosen, key=lambda name: ("/" in name, name))]


def _is_drawn(result: dict[str, Any]) -> bool:
    with_peer = bool(PEERS.keys() & result["versions"])
    return with_peer and result["text_bytes"] is None and result["rounds"] >= LEAST_ROUNDS


def _rank(result: dict[str, Any]) -> tuple[str, float]:
    return result["date"], result["text_mb"]


def panel_of(result: dict[str, Any]) -> Panel:
    """Return the bars of a result."""
    medians = {figure["name"]: statistics.median(figure["values"]) for figure in result["figures"]}
    bars = [Bar(name, medians[name], medians.get(f"{OURS} / {name}", 1.0)) for name in TITLES if name in medians]
    title = f"{result['tokenizer']}, {result['text_mb']:.0f} MB of Python sources"
    return Panel(title, sorted(bars, key=lambda bar: bar.rate, reverse=True))


def draw(results: list[dict[str, Any]]) -> str:
    """Return the SVG of results of build.py."""
    panels = [panel_of(result) for result in results]
    full = max(bar.rate for panel in panels for bar in panel.bars)
    height = _TOP + sum(_HEAD + _ROW * len(panel.bars) for panel in panels) + _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        'font-family="system-ui, sans-serif" font-size="13">',
        f"  <title>{_caption(results)}</title>",
        f"  <style>{_STYLE}  </style>",
        f'  <rect class="back" width="{_WIDTH}" height="{height}" rx="6"/>',
    ]
    top = _TOP
    for panel in panels:
        parts += _draw_panel(panel, top, full)
        top += _HEAD + _ROW * len(panel.bars)
    parts.append(_text(16, height - 14, _caption(results), "faint"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _caption(results: list[dict[str, Any]]) -> str:
    dates = sorted({result["date"] for result in results})
    workers, cores = (min(result[key] for result in results) for key in ("workers", "cores"))
    least, most = (of(result["rounds"] for result in results) for of in (min, max))
    rounds = f"{least} to {most} rounds" if least < most else counted(most, "round")
    what = f"Whole builds on {workers} processes and {cores} cores, medians of {rounds}"
    return f"{what}, {' and '.join(dates)} (python benchmarks/build.py)"


def _draw_panel(panel: Panel, top: int, full: float) -> Iterator[str]:
    yield _text(16, top + 20, panel.title, "strong")
    yield _text(_TIMES, top + 20, "tokenloom is … times as fast", "faint end")
    for row, bar in enumerate(panel.bars):
        y = top + _HEAD - 12 + row * _ROW
        kind = _KINDS.get(bar.name, "other")
        length = _BAR * bar.rate / full
        weight = "strong " if bar.name == OURS else ""
        yield _text(_LEFT - 10, y + 14, TITLES[bar.name], f"{weight}end")
        yield f'  <rect class="{kind}" x="{_LEFT}" y="{y}" width="{length:.1f}" height="20" rx="2"/>'
        yield _text(_LEFT + length + 8, y + 14, f"{bar.rate:.1f} MB/s", weight.strip())
        if bar.name != OURS:
            yield _text(_TIMES, y + 14, f"{bar.times:.1f}", "end")


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'  <text x="{x:.1f}" y="{y}" class="{kind}">{escape(text)}</text>'


def main() -> None:
    """Draw the chart that the command line asks for."""
    parser = argparse.ArgumentParser(description="Draw the newest results of build.py.")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results", help="a folder of JSON files")
    parser.add_argument("--output", type=Path, default=ROOT / "docs/images/speed.svg", help="the SVG to write")
    arguments = parser.parse_args()
    arguments.output.write_text(draw(newest_results(arguments.results)))


if __name__ == "__main__":
    main()
