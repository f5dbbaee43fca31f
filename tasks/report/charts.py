"""Draw charts as SVG, whose colours and fonts are those of the page's style sheet: one drawing serves light and dark.

Coordinates are pixels of the drawing, which the page scales. The same figures give the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from tokenloom.tasks.report.wording import clipped, short

BAR_WIDTH, _ROW_HEIGHT, _BAR_HEIGHT = 360, 26, 17
HISTOGRAM_WIDTHS = (560, 340)  # a drawing for wide screens, one for phones
_HISTOGRAM_HEIGHT, _TOP, _BOTTOM, _LEFT = 280, 20, 256, 48  # _TOP to _LEFT are the edges of the plot
_LETTER_WIDTH, _GAP = 7.2, 6  # a letter of the style sheet's font is rarely wider
_NAME_CHARS, _VALUE_SPACE = 22, 100  # the longest name; what is left for the value of the longest bar
_MARK_SPACE = 80  # a name beside the first or the last mark is rarely wider


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar: its name, its value, and the value in words, which is written beside it."""

    name: str
    value: float
    text: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A length to mark in a histogram: its logarithm to base 2, and its name."""

    at: float
    name: str


def bar_chart(bars: Sequence[Bar], title: str, full: float | None = None) -> Markup:
    """Return horizontal bars as SVG, the first at the top; hovering over a bar shows its whole name.

    Args:
        bars: at least one.
        title: what the chart shows, for those who can't see it.
        full: the value of a bar of full length; None for the largest.
    """
    names = [clipped(bar.name, _NAME_CHARS) for bar in bars]
    left = _GAP + _LETTER_WIDTH * max(map(len, names))
    scale = (BAR_WIDTH - _VALUE_SPACE - left) / (full or max(bar.value for bar in bars) or 1)
    rows = []
    for index, (bar, name) in enumerate(zip(bars, names, strict=True)):
        top, length = _ROW_HEIGHT * index + 8, bar.value * scale
        drawn = Markup('<rect x="{:.1f}" y="{}" width="{:.1f}" height="{}" rx="2"/>').format(
            left, top, length, _BAR_HEIGHT
        )
        texts = _text("name", left - _GAP, top + 13, name) + _text("value", left + length + _GAP, top + 13, bar.text)
        rows.append(Markup("<g><title>{}: {}</title>{}{}</g>").format(bar.name, bar.text, drawn, texts))
    described = ", ".join(f"{bar.name} {bar.text}" for bar in bars[:12])
    return _drawing("bars", BAR_WIDTH, _ROW_HEIGHT * len(bars) + 8, title, described, rows)


def histogram(bars: Sequence[tuple[float, float, float]], marks: Sequence[Mark], title: str, width: int) -> Markup:
    """Return a histogram of lengths on a logarithmic axis as SVG.

    Args:
        bars: (start, end, height) of each; start and end are logarithms to base 2.
        marks: three lengths, rising: the names of the first and last stand beside their lines, the other above.
        title: what the chart shows, for those who can't see it.
        width: in pixels.
    """
    top = max(height for _, _, height in bars) or 1.0
    plot_width = width - _LEFT - _GAP
    start, end = _with_space(bars[0][0], bars[-1][1], marks, _MARK_SPACE / plot_width)

    def x(length: float) -> float:
        return round(_LEFT + (length - start) / (end - start) * plot_width, 1)

    def y(height: float) -> float:
        return round(_BOTTOM - height / (1.16 * top) * (_BOTTOM - _TOP), 1)

    parts = []
    for height in axis_heights(top):
        parts += [
            _path("grid", f"M{_LEFT} {y(height)}H{width - _GAP}"),
            _text("height", _LEFT - _GAP, y(height) + 4, short(height)),
        ]
    parts += [_text("length", x(math.log2(length)), _BOTTOM + 16, short(length)) for length in axis_lengths(start, end)]
    outline = "".join(f"V{y(height)}H{x(right)}" for _, right, height in bars)
    parts.append(_path("area", f"M{x(bars[0][0])} {_BOTTOM}{outline}V{_BOTTOM}Z"))
    for mark, kind, dx, dy in zip(marks, ("before", "above", "after"), (-_GAP, 0, _GAP), (8, -_GAP, 8), strict=True):
        parts += [
            _path("mark", f"M{x(mark.at)} {_BOTTOM}V{y(1.08 * top)}"),
            _text(kind, x(mark.at) + dx, y(1.08 * top) + dy, mark.name),
        ]
    return _drawing("histogram", width, _HISTOGRAM_HEIGHT, title, ", ".join(mark.name for mark in marks), parts)


def _with_space(start: float, end: float, marks: Sequence[Mark], space: float) -> tuple[float, float]:
    """Return the ends of the axis, moved so that the names beside the first and last mark have a share of it."""
    start = min(start, (marks[0].at - space * end) / (1 - space))
    return start, max(end, (marks[-1].at - space * start) / (1 - space))


def axis_lengths(start: float, end: float) -> list[int]:
    """Return the lengths to label on an axis from `start` to `end`, logarithms to base 2: about three to eight."""
    factors = (1,) if end - start > 10 else (1, 3) if end - start > 6 else (1, 2, 5)
    lengths = [factor * 10**power for power in range(19) for factor in factors]
    return [length for length in lengths if start <= math.log2(length) <= end] or [max(1, round(2**start))]


def axis_heights(top: float) -> list[float]:
    """Return round heights to label, from 0 to at most `top`: two to four of 1, 2 or 5 times a power of ten."""
    ten = 10.0 ** math.floor(math.log10(top))
    step = next(step for step in (0.2 * ten, 0.5 * ten, ten, 2 * ten, 5 * ten) if top / step < 5)
    return [step * k for k in range(int(top / step) + 1)]


def _drawing(kind: str, width: int, height: int, title: str, described: str, parts: Iterable[Markup]) -> Markup:
    """Return a drawing; screen readers read its title and what it shows."""
    return Markup(
        '<svg class="chart {}" viewBox="0 0 {} {}" style="max-width:{}px" role="img" aria-label="{}: {}">'
        "<title>{}</title>{}</svg>"
    ).format(kind, width, height, width, title, described, title, Markup("").join(parts))


def _path(kind: str, line: str) -> Markup:
    return Markup('<path class="{}" d="{}"/>').format(kind, line)


def _text(kind: str, x: float, y: float, text: str) -> Markup:
    return Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}</text>').format(kind, x, y, text)
