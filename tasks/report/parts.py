"""What a report is made of: sections with charts, tables and documents, their texts ready to show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from tokenloom.tasks.report.charts import Bar, bar_chart
from tokenloom.tasks.report.wording import inert

_MAX_ROWS = 1000  # of a table, which keeps a page below 1 MB
_MAX_BARS = 12


@dataclass(frozen=True, slots=True)
class Table:
    """A table; the cells of `numbers`, which are names of columns, are right-aligned."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: drawings of the same figures, of which the style sheet shows the one that fits the screen."""

    title: str
    unit: str
    drawings: Sequence[Markup]
    kind: str = ""


@dataclass(frozen=True, slots=True)
class ShownDocument:
    """A sampled document in words."""

    source: str
    path: str
    row: str
    id: str | None
    text: str
    is_cut: bool
    split: str
    shard: str
    start: str
    end: str
    num_tokens: str
    content: str


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the page; `key` names it in links."""

    key: str
    title: str
    lead: str = ""
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    documents: Sequence[ShownDocument] = field(default_factory=tuple)


def limited(rows: list[list[str]], what: str) -> list[list[str]]:
    """Return the first rows of a table, the last of which says how many `what` are left out."""
    if len(rows) <= _MAX_ROWS:
        return rows
    rest = [f"and {len(rows) - _MAX_ROWS:,} more {what}", *[""] * (len(rows[0]) - 1)]
    return [*rows[:_MAX_ROWS], rest]


def bars_of(title: str, unit: str, bars: Sequence[Bar], full: float | None = None) -> Chart:
    """Return a chart of the first bars; its unit says how many are left out.

    Args:
        title: of the chart.
        unit: what it counts.
        bars: at least one.
        full: the value of a bar of full length; None for the largest.
    """
    more = f"the first {_MAX_BARS} of {len(bars):,}" if len(bars) > _MAX_BARS else ""
    shown = [Bar(inert(bar.name), bar.value, bar.text) for bar in bars[:_MAX_BARS]]
    return Chart(title, ", ".join(filter(None, (unit, more))), [Markup(bar_chart(shown, title, full))])
