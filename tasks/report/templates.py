"""The templates of reports and catalogues, which have all HTML, and the filters that they use.

Every text of a store is escaped and inert on the page: no script, no network.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from tokenloom.tasks.report.wording import (
    change,
    clipped,
    inert,
    parts,
    percent_of,
    shares,
    short,
    token_name,
)
from tokenloom.tasks.running.progress import STEPS, step_label
from tokenloom.wording import counted, described_tokenizer, shown_bytes, shown_time

_INDENTED = re.compile(r"^(?:\t|  +)\S.*\n(?:.*\n)*?(?:\t|  +)\S", re.MULTILINE)  # two such lines: code or a table


def render(template: str, max_rows: int, **values: Any) -> str:
    """Render a page as HTML.

    Args:
        template: its file name in this folder.
        max_rows: the rows of each table at most.
        values: what else the template shows.
    """
    return templates().get_template(template).render(values, max_rows=max_rows, contents=[])


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
        "clipped": lambda text, num_chars: text if isinstance(text, Markup) else clipped(text, num_chars),
        "coded": _coded,
        "counted": counted,
        "described_tokenizer": described_tokenizer,
        "inert": inert,
        "n": "{:,}".format,
        "parts": parts,
        "shares": shares,
        "short": short,
        "shown_bytes": shown_bytes,
        "shown_time": shown_time,
        "step_label": step_label,
    }
    environment.tests["code"] = _INDENTED.search
    environment.globals |= {"STEPS": STEPS, "change": change, "percent_of": percent_of, "token_name": token_name}
    environment.globals["style"] = Markup(_read("style.css"))
    return environment


def _coded(text: str) -> Markup:
    """Mark the parts of a sentence between backticks as code."""
    pieces = (text if isinstance(text, Markup) else inert(text)).split("`")
    return Markup("").join(Markup("<code>{}</code>").format(each) if i % 2 else each for i, each in enumerate(pieces))


def _shown(value: Any) -> Any:
    """Make a value of a template safe to show: markup of ours unchanged, text without control characters."""
    return inert(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _read(name: str) -> str:
    return files("tokenloom.tasks.report").joinpath(name).read_text(encoding="utf-8")
