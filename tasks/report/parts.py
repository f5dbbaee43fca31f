"""What a report and a catalogue are made of: a page with sections of charts, tables and documents.

Every text of a store is escaped and inert on the page: no script, no network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from tokenloom.tasks.report.charts import Bar, bar_chart
from tokenloom.tasks.report.figures import ExampleDocument
from tokenloom.tasks.report.wording import clipped, inert

_MAX_BARS = 12
_NAME_CHARS = 64  # the longest name of a source
_CELL_CHARS = 300


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
        """Return the first rows, their texts clipped, and one that says how many more there are."""
        rows = [[cell if isinstance(cell, Markup) else clipped(cell, _CELL_CHARS) for cell in row] for row in self.rows]
        more = len(rows) - count
        return [*rows[:count], [f"and {more:,} more", *[""] * (len(self.columns) - 1)]] if more > 0 else rows


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: drawings of the same figures, of which the style sheet shows the one that fits the screen."""

    title: str
    unit: str
    drawings: Sequence[Markup]
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the page; `key` names it in links."""

    key: str
    title: str
    lead: str = ""
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    documents: Sequence[ExampleDocument] = ()


@dataclass(frozen=True)
class Page:
    """A page: the figures at its top are (name, value, detail), `reading` is Python that opens the version."""

    title: str
    kind: str
    heading: str
    tiles: Sequence[tuple[str, str, str]]
    sections: Sequence[Section]
    footer: str
    version: str = ""
    facts: Sequence[str] = ()
    reading: str = ""
    notes: Sequence[str] = ()

    def render(self, max_rows: int) -> str:
        """Return the page as HTML, with at most `max_rows` rows of each table."""
        return template().render(vars(self), max_rows=max_rows)


@lru_cache(maxsize=1)
def template() -> Template:
    """Return the template of a page, compiled once a process."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, finalize=_shown, trim_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= {"coded": _coded, "clipped": clipped}
    environment.globals["style"] = Markup(_read("style.css"))
    return environment.from_string(_read("page.html"))


def _coded(text: str) -> Markup:
    """Return a sentence of ours with what stands between backticks as code."""
    parts = inert(text).split("`")
    return Markup("").join(Markup("<code>{}</code>").format(part) if i % 2 else part for i, part in enumerate(parts))


def _shown(value: Any) -> Any:
    """Return a value of the template as it is shown: markup of ours unchanged, text without control characters."""
    return inert(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _read(name: str) -> str:
    return files("tokenloom.tasks.report").joinpath(name).read_text(encoding="utf-8")


def marked(kind: str, *texts: str) -> Markup:
    """Return texts for a cell of a table, each in the style of a kind of the style sheet: date, tag or bad."""
    return Markup(" ").join(Markup('<span class="{}">{}</span>').format(kind, inert(text)) for text in texts)


def linked(name: str, url: str | None) -> Markup:
    """Return the name of a version for a cell of a table, with a link to a page, if there is one."""
    code = Markup("<code>{}</code>").format(inert(name))
    return Markup('<a href="{}">{}</a>').format(url, code) if url else code


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
