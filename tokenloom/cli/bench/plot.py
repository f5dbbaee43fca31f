"""Draw the plot of `tokenloom bench read` as SVG, without a plotting package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from tokenloom.cli.bench.figures import BenchResult, WayFigures
from tokenloom.cli.bench.tables import way_name
from tokenloom.wording import counted

_INK, _FAINT = "#1f2937", "#d1d5db"
_SHADES = ("#2563eb", "#93b4f5", "#d9e4fc")  # of a row's first, second and third value
_LABELS, _PANEL, _NUMBERS, _BAR_HEIGHT, _ROW_HEIGHT, _TOP, _GAP = 230, 260, 190, 16, 28, 78, 44


@dataclass(frozen=True)
class _Panel:
    """The bars of one figure: for each way its values in ascending order, and their text."""

    title: str
    rows: Sequence[tuple[Sequence[float], str]]
    full: float | None = None  # the value of a bar of full length; None for the largest value


def draw(result: BenchResult) -> str:
    """Return an SVG of four panels with a bar for each way of feeding: idle share, rate, step quantiles, memory."""
    ways = result.ways
    names = [way_name(result, way) for way in ways]
    panels = [
        _Panel("share of time spent waiting", [([way.idle_ratio], f"{way.idle_ratio:.2%}") for way in ways], 1.0),
        _Panel("million tokens per second in all", [_rate(way) for way in ways]),
        _Panel("a step in ms: p50 (dark), p99, max (light)", [_step(way) for way in ways]),
        _Panel("MB of a process: proportional (dark), resident (light)", [_memory(way) for way in ways]),
    ]
    band = _ROW_HEIGHT * len(ways) + _GAP
    width, height = _LABELS + 2 * (_PANEL + _NUMBERS), _TOP + 2 * band - _GAP + 16
    title = f"{counted(result.processes, 'process')}, {result.step_ms:g} ms per step, "
    title += f"batches of {result.batch_size} x {result.seq_len} tokens"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(16, 28, title, size=15),
    ]
    for number, panel in enumerate(panels):
        left, top = _LABELS + number % 2 * (_PANEL + _NUMBERS), _TOP + number // 2 * band
        if number % 2 == 0:
            parts += [_text(_LABELS - 12, _middle(top, row), name, anchor="end") for row, name in enumerate(names)]
        parts += _draw_panel(panel, left, top)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _rate(way: WayFigures) -> tuple[list[float], str]:
    rate = way.tokens_per_second_in_all / 1e6
    return [rate], f"{rate:.3g}"


def _step(way: WayFigures) -> tuple[list[float], str]:
    values = [way.step_ms.p50, way.step_ms.p99, way.step_ms.max]
    return values, " / ".join(f"{value:.3g}" for value in values)


def _memory(way: WayFigures) -> tuple[list[float], str]:
    sizes = [way.memory_bytes[name] / 1e6 for name in ("pss", "rss") if name in way.memory_bytes]
    return sizes, " / ".join(f"{size:.0f}" for size in sizes) or "unknown"


def _draw_panel(panel: _Panel, left: int, top: int) -> list[str]:
    bottom = top + _ROW_HEIGHT * len(panel.rows)
    line = f'<line x1="{left}" y1="{top - 8}" x2="{left}" y2="{bottom}" stroke="{_FAINT}"/>'
    parts = [_text(left, top - 18, panel.title), line]
    full = panel.full or max((value for values, _ in panel.rows for value in values), default=0.0) or 1.0
    for row, (values, text) in enumerate(panel.rows):
        y = top + row * _ROW_HEIGHT
        lengths = [_PANEL * value / full for value in values]
        longest_first = reversed(list(zip(lengths, _SHADES, strict=False)))  # the others are drawn over it
        for length, shade in longest_first:
            parts.append(f'<rect x="{left}" y="{y}" width="{length:.1f}" height="{_BAR_HEIGHT}" fill="{shade}"/>')
        parts.append(_text(left + max(lengths, default=0.0) + 6, _middle(top, row), text))
    return parts


def _middle(top: int, row: int) -> int:
    """Return the baseline of the text beside a row's bar."""
    return top + row * _ROW_HEIGHT + _BAR_HEIGHT - 3


def _text(x: float, y: float, text: Any, anchor: str = "start", size: int = 13) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{_INK}"'
    return f"<text {place}>{escape(str(text))}</text>"
