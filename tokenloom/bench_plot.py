"""What `tokenloom bench read` shows: tables, and a plot as an SVG file, written by hand so that it needs no package."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from tokenloom.output import Json, print_line, print_table

_INK, _FAINT, _BAR = "#1f2937", "#d1d5db", "#2563eb"
_LABELS, _PANEL, _NUMBERS, _BAR_HEIGHT, _ROW_HEIGHT, _TOP = 230, 260, 110, 16, 28, 78


def show(result: Json, quiet: bool) -> None:
    """Print the tables of a run."""
    ways = result["ways"]
    what = f"{result['packing']}, order {result['order']}, seq_len {result['seq_len']}, batch {result['batch_size']}"
    print_line(quiet, f"{result['reference']} {result['split']}: {what}")
    print_line(
        quiet, f"{result['processes']} processes that compute {result['step_ms']:g} ms a step; p50/p99/max in ms\n"
    )
    header = ["way of feeding", "idle", "batch", "step", "first batch", "Mtokens/s", "in all", "flat out", "of bare"]
    print_table(quiet, header, [[_name(result, way), *_speeds(way)] for way in ways])
    print_line(quiet, "\na process, its workers included; the imports alone are resident before anything is opened\n")
    header = ["way of feeding", "resident", "imports", "proportional", "shared", "processor"]
    print_table(quiet, header, [[_name(result, way), *_sizes(way)] for way in ways])
    print_line(quiet, f"\nshards touched on each node, of {result['shards']:,}\n")
    rows = [[way["way"], cut["nodes"], *_of_nodes(cut)] for way in ways for cut in way["per_node"]]
    print_table(quiet, ["way of feeding", "nodes", "shards", "downloaded"], rows)


def _name(result: Json, way: Json) -> str:
    several = len({other["nodes"] for other in result["ways"]}) > 1
    return f"{way['way']}, {way['nodes']} nodes" if several else str(way["way"])


def _speeds(way: Json) -> list[str]:
    batch, step = ("/".join(f"{value:.3g}" for value in way[name].values()) for name in ("batch_ms", "step_ms"))
    names = ("tokens_per_second", "tokens_per_second_in_all", "flat_out_tokens_per_second")
    rates = [f"{way[name] / 1e6:.3g}" for name in names]
    idle, first = f"{way['idle_ratio']:.2%}", f"{way['first_batch_seconds'] * 1e3:.0f} ms"
    return [idle, batch, step, first, *rates, f"{way['flat_out_to_bare']:.2f}"]


def _sizes(way: Json) -> list[str]:
    names = ("rss", "rss_of_imports", "pss", "shared")
    found = [way["memory_bytes"].get(name) for name in names]
    sizes = ["unknown" if size is None else f"{size / 1e6:.0f} MB" for size in found]
    return [*sizes, f"{way['cpu_share']:.0%}"]


def _of_nodes(cut: Json) -> list[str]:
    downloaded = cut["bytes_downloaded"]
    sizes = "nothing" if downloaded is None else ", ".join(f"{size / 1e6:,.1f} MB" for size in downloaded)
    return [", ".join(f"{number:,}" for number in cut["shards"]), sizes]


def draw(result: Json) -> str:
    """Return an SVG with a bar for each way of feeding: on the left its idle ratio, on the right its rate."""
    ways = result["ways"]
    names = [_name(result, way) for way in ways]
    idle = [way["idle_ratio"] for way in ways]
    rates = [way["tokens_per_second_in_all"] / 1e6 for way in ways]
    width = _LABELS + 2 * (_PANEL + _NUMBERS)
    height = _TOP + _ROW_HEIGHT * len(ways) + 16
    title = f"{result['processes']} processes, {result['step_ms']:g} ms a step, batches of {result['batch_size']} x "
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(16, 28, title + f"{result['seq_len']} tokens", size=15),
        *(_text(_LABELS - 12, _middle(row), name, anchor="end") for row, name in enumerate(names)),
        *_panel(_LABELS, "share of time spent waiting", idle, [f"{value:.2%}" for value in idle], 1.0),
        *_panel(
            _LABELS + _PANEL + _NUMBERS,
            "million tokens a second in all",
            rates,
            [f"{value:.3g}" for value in rates],
            max(rates),
        ),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _panel(left: int, title: str, values: Sequence[float], told: Sequence[str], most: float) -> list[str]:
    bottom = _TOP + _ROW_HEIGHT * len(values)
    line = f'<line x1="{left}" y1="{_TOP - 8}" x2="{left}" y2="{bottom}" stroke="{_FAINT}"/>'
    parts = [_text(left, _TOP - 18, title), line]
    for row, (value, text) in enumerate(zip(values, told, strict=True)):
        length = _PANEL * value / (most or 1.0)
        y = _TOP + row * _ROW_HEIGHT
        parts.append(f'<rect x="{left}" y="{y}" width="{length:.1f}" height="{_BAR_HEIGHT}" fill="{_BAR}"/>')
        parts.append(_text(left + length + 6, _middle(row), text))
    return parts


def _middle(row: int) -> int:
    """Return the base line of a text beside the bar of a row."""
    return _TOP + row * _ROW_HEIGHT + _BAR_HEIGHT - 3


def _text(x: float, y: float, text: Any, anchor: str = "start", size: int = 13) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{_INK}"'
    return f"<text {place}>{escape(str(text))}</text>"
