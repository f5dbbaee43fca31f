"""Draw charts with pygal as SVG that takes its colours and fonts from the page's style sheet.

pygal lays a chart out; its own styles, scripts and comments (one has the date) are left out, so the same figures give
the same bytes, and one drawing serves light and dark. A value's text becomes a title, which browsers show on hover.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from xml.etree import ElementTree

import pygal
from pygal.etree import etree
from pygal.style import Style

from tokenloom.tasks.report.wording import short

BAR_WIDTH, _ROW_HEIGHT = 360, 26  # of a chart of bars, in pixels
HISTOGRAM_WIDTHS = (560, 340)  # for wide screens and for phones
_HISTOGRAM_HEIGHT, _NAME_SPACE = 280, 80
_FONT = 12
_LABEL_CHARS, _VALUE_SPACE = 22, 108  # of a bar's name; to the right of the longest bar, in pixels
# On import, pygal adds a finder of its maps that Python 3.11 warns about at each import, and 3.12 ignores.
sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, pygal.PluginImportFixer)]

_LEFT_OUT = ("background", "titles", "plot overlay", "plot tooltip-overlay")  # classes of pygal's nodes
_FONT_KEYS = ("label_font_size", "major_label_font_size", "value_font_size", "value_label_font_size", "title_font_size")
_STYLE = Style(**dict.fromkeys(_FONT_KEYS, _FONT))


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


def bar_chart(bars: Sequence[Bar], title: str, full: float | None = None) -> str:
    """Return horizontal bars as SVG, the first at the top.

    Args:
        bars: at least one.
        title: what the chart shows, for those who can't see it.
        full: the value of a bar of full length; None for the largest.
    """
    texts = [bar.text for bar in bars]
    chart = pygal.HorizontalBar(
        **_plain(BAR_WIDTH, _ROW_HEIGHT * len(bars) + 8),
        margin_right=_VALUE_SPACE,
        show_x_labels=False,
        show_x_guides=False,
        print_values=True,
        print_values_position="top",
        rounded_bars=2,
        range=(0, full or max(bar.value for bar in bars) or 1),
        truncate_label=_LABEL_CHARS,
    )
    chart.x_labels = [bar.name for bar in reversed(bars)]
    values = [{"value": bar.value, "formatter": partial(_constant, bar.text)} for bar in reversed(bars)]
    chart.add(None, values)
    described = ", ".join(f"{bar.name} {text}" for bar, text in zip(bars[:12], texts, strict=False))
    return _clean(chart, "bars", title, f"{title}: {described}")


def _constant(text: str, value: object) -> str:
    return text


def histogram(bars: Sequence[tuple[float, float, float]], marks: Sequence[Mark], title: str, width: int) -> str:
    """Return a histogram of lengths on a logarithmic axis as SVG.

    Args:
        bars: (start, end, height) of each; start and end are logarithms to base 2.
        marks: three lengths, rising: the names of the first and last stand beside their lines, the other above.
        title: what the chart shows, for those who can't see it.
        width: in pixels.
    """
    top = max(height for _, _, height in bars) or 1.0
    start, end = _with_space(bars[0][0], bars[-1][1], marks, width)
    outline = [(bars[0][0], 0.0)]
    for left, right, height in bars:
        outline += [(left, height), (right, height)]
    outline.append((bars[-1][1], 0.0))
    chart = pygal.XY(
        **_plain(width, _HISTOGRAM_HEIGHT),
        margin_bottom=4,
        xrange=(start, end),
        range=(0, top * 1.22),
        show_x_guides=False,
        include_x_axis=True,
        truncate_label=-1,
        print_labels=True,
    )
    chart.x_labels = [{"value": math.log2(length), "label": short(length)} for length in axis_lengths(start, end)]
    chart.y_labels = [{"value": height, "label": short(height)} for height in axis_heights(top)]
    chart.add(None, outline, fill=True, show_dots=False)
    for mark in marks:  # the upper end of a line carries its name; the style sheet moves it beside or above the line
        chart.add(None, [(mark.at, 0.0), {"value": (mark.at, top * 1.08), "label": mark.name}])
    return _clean(chart, "histogram", title, f"{title}: {', '.join(mark.name for mark in marks)}")


def _with_space(start: float, end: float, marks: Sequence[Mark], width: int) -> tuple[float, float]:
    """Return the ends of the axis, moved so that the names beside the first and last mark have space."""
    space = _NAME_SPACE / width
    start = min(start, (marks[0].at - space * end) / (1 - space))
    return start, max(end, (marks[-1].at - space * start) / (1 - space))


def axis_lengths(start: float, end: float) -> list[int]:
    """Return the lengths to label on an axis from `start` to `end`, logarithms to base 2: about three to eight."""
    decades = [(power, 10**power) for power in range(19)]
    factors = (1,) if end - start > 10 else (1, 3) if end - start > 6 else (1, 2, 5)
    lengths = [factor * ten for _, ten in decades for factor in factors]
    return [length for length in lengths if start <= math.log2(length) <= end] or [max(1, round(2**start))]


def axis_heights(top: float) -> list[float]:
    """Return round heights to label, from 0 to at most `top`: two to four of 1, 2 or 5 times a power of ten."""
    ten = 10.0 ** math.floor(math.log10(top))
    step = next(step for step in (0.2 * ten, 0.5 * ten, ten, 2 * ten, 5 * ten) if top / step < 5)
    return [step * k for k in range(int(top / step) + 1)]


def _plain(width: int, height: int) -> dict[str, Any]:
    """Return what all charts share: no legend, no script, no style of pygal's."""
    return {
        "width": width,
        "height": height,
        "margin": 4,
        "spacing": 4,
        "show_legend": False,
        "style": _STYLE,
        "js": (),
        "css": (),
        "no_prefix": True,
    }


def _clean(chart: Any, kind: str, title: str, description: str) -> str:
    """Return the SVG of a chart without what the page does not need."""
    etree.to_etree()  # lxml, if it is installed, writes other bytes
    root: ElementTree.Element = chart.render_tree()
    viewbox = root.get("viewBox", "")
    root.attrib.clear()
    root.attrib |= {"class": f"chart {kind}", "viewBox": viewbox, "role": "img", "aria-label": description}
    root.set("style", f"max-width:{viewbox.split()[2]}px")
    for parent in list(root.iter()):
        for child in list(parent):
            if _is_left_out(child) or (child.tag == "title" and parent.get("class") == "guides"):
                parent.remove(child)
            elif child.tag == "desc":
                child.tag = "title"
                child.attrib.clear()
    heading = root.find("title")
    if heading is not None:
        heading.text = title
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=True)


def _is_left_out(node: ElementTree.Element) -> bool:
    if callable(node.tag):  # a comment
        return True
    kind = node.get("class", "")
    if node.tag == "desc":
        return "value" not in kind.split()
    return node.tag == "defs" or kind in _LEFT_OUT
