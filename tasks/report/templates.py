"""The templates of a report and a catalogue: every text in them is escaped and inert."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup

from tokenloom.tasks.report.wording import inert


@lru_cache(maxsize=2)
def template(name: str) -> Template:
    """Return a template of this folder, compiled once a process; it has the style sheet as `style`."""
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        keep_trailing_newline=True,
        loader=FunctionLoader(_read),
    )
    environment.filters["coded"] = _coded
    environment.globals["style"] = Markup(_read("style.css"))
    return environment.get_template(name)


def _coded(text: str) -> Markup:
    """Return a sentence of ours with what stands between backticks as code."""
    parts = inert(text).split("`")
    return Markup("").join(Markup("<code>{}</code>").format(part) if i % 2 else part for i, part in enumerate(parts))


def _shown(value: Any) -> Any:
    """Return a value of the template as it is shown: markup of ours unchanged, text without control characters."""
    return inert(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _read(name: str) -> str:
    return files("tokenloom.tasks.report").joinpath(name).read_text(encoding="utf-8")
