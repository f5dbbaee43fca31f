"""What a report and a catalogue are made of: a page with sections of tables, written by the templates in this folder.

Every text of a store is escaped and inert on the page: no script, no network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from tokenloom.tasks.report.wording import change, clipped, inert, megabytes, percent_of
from tokenloom.tasks.running.progress import STEPS, step_label
from tokenloom.wording import counted


@dataclass(frozen=True, slots=True)
class Table:
    """A table; its first column and those that `texts` names are text, the others numbers."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: Sequence[str] = ()

    def named_rows(self) -> list[tuple[str, Sequence[str]]]:
        """Return the first cell of each row, and the others."""
        return [(row[0], row[1:]) for row in self.rows]


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the page; `key` names it in links."""

    key: str
    title: str
    lead: str = ""
    tables: Sequence[Table] = ()


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

    def render(self, max_rows: int, template: str = "page.html", **values: Any) -> str:
        """Return the page as HTML.

        Args:
            max_rows: the rows of each table at most.
            template: writes the sections.
            values: what else the template needs.
        """
        return templates().get_template(template).render(vars(self), max_rows=max_rows, **values)


@lru_cache(maxsize=1)
def templates() -> Environment:
    """Return the templates of pages, each compiled once a process."""
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        keep_trailing_newline=True,
        loader=FunctionLoader(_read),
    )
    environment.filters |= {
        "clipped": lambda text, num_chars: text if isinstance(text, Markup) else clipped(text, num_chars),
        "coded": _coded,
        "counted": counted,
        "inert": inert,
        "megabytes": megabytes,
        "n": "{:,}".format,
        "step_label": step_label,
    }
    environment.globals |= {"STEPS": STEPS, "change": change, "percent_of": percent_of}
    environment.globals["style"] = Markup(_read("style.css"))
    return environment


def _coded(text: str) -> Markup:
    """Return a sentence of ours with what stands between backticks as code."""
    parts = (text if isinstance(text, Markup) else inert(text)).split("`")
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
