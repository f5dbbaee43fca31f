"""What a report is made of: sections with charts, tables and documents, their texts ready to show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from tokenloom.tasks.report.charts import Bar, bar_chart
from tokenloom.tasks.report.wording import clipped, inert

_MAX_BARS = 12
_NAME_CHARS, _CELL_CHARS = 64, 300  # of a bar's name, the longest of a source; of a cell of a table


@dataclass(frozen=True, slots=True)
class Table:
    """A table; its first column and those that `texts` names are text, the others numbers.

    `bad_rows` are the positions of the rows that are shown in the colour of a failure.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: Sequence[str] = ()
    bad_rows: Sequence[int] = ()

    def first_rows(self, count: int) -> Sequence[Sequence[str]]:
        """Return the first rows, their cells clipped, and one that says how many more there are."""
        rows = [[clipped(cell, _CELL_CHARS) for cell in row] for row in self.rows[:count]]
        more = len(self.rows) - len(rows)
        return [*rows, [f"and {more:,} more", *[""] * (len(self.columns) - 1)]] if more else rows


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
    is_code: bool
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


def bars_of(title: str, unit: str, bars: Sequence[Bar], full: float | None = None) -> Chart:
    """Return a chart of the first bars; its unit says how many are left out.

    Args:
        title: of the chart.
        unit: what it counts.
        bars: at least one.
        full: the value of a bar of full length; None for the largest.
    """
    more = f"the first {_MAX_BARS} of {len(bars):,}" if len(bars) > _MAX_BARS else ""
    shown = [Bar(clipped(inert(bar.name), _NAME_CHARS), bar.value, bar.text) for bar in bars[:_MAX_BARS]]
    return Chart(title, ", ".join(filter(None, (unit, more))), [bar_chart(shown, title, full)])
