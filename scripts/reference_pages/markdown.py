"""Markdown of texts that were written for a terminal, a form or a docstring."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
_CODE = re.compile(r"(`[^`]*`)")
_OPTION = re.compile(r"(?<![\w`-])(--[a-z][a-z-]*)")
_MARKUP = re.compile(r"([*\\<\[\]]|(?<!\w)_|_(?!\w))")


def escaped(text: str) -> str:
    """Return a text with the characters escaped that Markdown would take as markup, except in `code`."""
    parts = _CODE.split(text)
    return "".join(part if part.startswith("`") else _MARKUP.sub(r"\\\1", part) for part in parts)


def sentence(text: str) -> str:
    """Return a text as a sentence of Markdown, with a capital letter and a full stop; --options become `code`."""
    parts = _CODE.split(text)
    parts[::2] = [_OPTION.sub(r"`\1`", part) for part in parts[::2]]
    text = escaped("".join(parts))
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", ":")) else ".")


def anchor(heading: str) -> str:
    """Return the anchor of a heading, as GitHub and the site make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def link(heading: str, page: str = "", text: str = "") -> str:
    """Return a link to a heading, of this page unless another is named."""
    return f"[{text or heading}]({page}#{anchor(heading)})"


def contents(headings: Iterable[str]) -> str:
    """Return links to headings of a page, on one line."""
    return " · ".join(map(link, headings))


def guide_link(target: str) -> str:
    """Return a link to a guide, or to a section of it; its text is the title of the page."""
    page = _REFERENCE / target.partition("#")[0]
    title = page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    return f"[{title}]({target})"
