"""The templates of reports and catalogues, which have all HTML, and the filters that they use.

Every text of a store is escaped and inert on the page: no script, no network.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from tokenloom.storage.formats.statistics import DocumentCounts
from tokenloom.wording import counted, described_tokenizer, printable, shown_bytes, shown_time

MAX_ROWS = 200  # of a table
_UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))


def render(template: str, **values: Any) -> str:
    """Render a page as HTML.

    Args:
        template: its file name in this folder.
        values: what the template shows.
    """
    return templates().get_template(template).render(values, contents=[])


@lru_cache(maxsize=1)
def templates() -> Environment:
    """Load the templates of pages, each compiled once a process."""
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        keep_trailing_newline=True,
        loader=FunctionLoader(_read),
    )
    environment.filters |= {
        "coded": _coded,
        "counted": counted,
        "described_tokenizer": described_tokenizer,
        "inert": printable,
        "n": "{:,}".format,
        "parts": parts,
        "shares": shares,
        "short": short,
        "shown_bytes": shown_bytes,
        "shown_time": shown_time,
    }
    environment.globals |= {"max_rows": MAX_ROWS, "percent_of": percent_of, "style": Markup(_read("style.css"))}
    return environment


def _coded(text: str) -> Markup:
    """Mark the parts of a sentence between backticks as code."""
    pieces = (text if isinstance(text, Markup) else printable(text)).split("`")
    return Markup("").join(Markup("<code>{}</code>").format(each) if i % 2 else each for i, each in enumerate(pieces))


def _shown(value: Any) -> Any:
    """Make a value of a template safe to show: markup of ours unchanged, text without control characters."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _read(name: str) -> str:
    return files("tokenloom.tasks.report").joinpath(name).read_text(encoding="utf-8")


def short(count: float) -> str:
    """Round a count to at most three digits and a unit: "12.6 M"."""
    for size, unit in _UNITS:
        if count >= 0.9995 * size:
            value = count / size
            return f"{value:.3g} {unit}" if value < 999.5 else f"{value:.0f} {unit}"
    return f"{count:.3g}" if count != int(count) else f"{count:.0f}"


def percent_of(part: float, whole: float) -> str:
    """Return a share in percent: "0", "<0.1 %", "3.4 %", "98 %"; "-" of nothing."""
    if not whole:
        return "-"
    share = 100 * part / whole
    if 0 < share < 0.1:
        return "<0.1 %"
    return f"{share:.1f} %" if 0 < share < 9.95 else f"{share:.0f} %"


def parts(counts: Mapping[str, float], whole: float | None = None) -> list[tuple[str, float, str]]:
    """Return the bars of a chart: name, count, and the count in words, with its share if `whole` is given."""
    return [
        (name, count, short(count) if whole is None else f"{short(count)} ({percent_of(count, whole)})")
        for name, count in counts.items()
    ]


def shares(counts: Mapping[str, DocumentCounts], what: str) -> list[tuple[str, float, str]]:
    """Return the bars of the documents or tokens of each source or split, the largest first."""
    values = {name: getattr(each, what) for name, each in counts.items()}
    return parts(dict(sorted(values.items(), key=lambda item: (-item[1], item[0]))), sum(values.values()))


def token_name(text: str | None, token_id: int) -> str:
    """Name a token in a chart: its text, with blanks that are seen, and its id."""
    if text is None:
        return f"id {token_id}"
    shown = printable(text).replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣")
    return f"{shown} · {token_id}"
