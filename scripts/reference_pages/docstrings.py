"""Markdown of docstrings, which are written in Google's style."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from inspect import cleandoc
from typing import Any

from griffe import Docstring, DocstringSection, DocstringSectionKind

from scripts.reference_pages.markdown import anchor, escaped, sentence
from scripts.reference_pages.public_names import shown
from tokenloom import errors

_ERRORS = [name for name, item in vars(errors).items() if isinstance(item, type) and issubclass(item, Exception)]
_NAMES = [item.name for item in shown() if not item.name.islower() or "_" in item.name]  # others are words, too
_LINKED = dict.fromkeys(_ERRORS, "errors.md") | dict.fromkeys(_NAMES, "python.md")
_NAME = re.compile(rf"(?<![\w`\[.])({'|'.join(_LINKED)})(?![\w`])")
_PAGE = re.compile(r"\bdocs/(\w+/([\w-]+)\.md)")


def body(docstring: str) -> str:
    """Return a docstring as Markdown."""
    return "\n\n".join(filter(None, (_section(section) for section in sections(docstring))))


def sections(docstring: str) -> list[DocstringSection]:
    """Return the sections of a docstring."""
    return Docstring(cleandoc(docstring)).parse("google", warnings=False)


def _section(section: DocstringSection) -> str:
    value: Any = section.value
    if section.kind is DocstringSectionKind.text:
        return prose(value)
    if section.kind is DocstringSectionKind.admonition:
        return f"**{section.title}:** {prose(value.description)}"
    if section.kind in _TITLES:
        return f"**{_TITLES[section.kind]}**\n\n" + "\n".join(_items(section.kind, value))
    raise ValueError(f"a docstring has a section of the kind {section.kind}: render it in {__name__}")


_TITLES = {
    DocstringSectionKind.parameters: "Arguments",
    DocstringSectionKind.attributes: "Attributes",
    DocstringSectionKind.raises: "Raises",
    DocstringSectionKind.returns: "Returns",
}


def _items(kind: DocstringSectionKind, values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        text = prose(sentence(" ".join(value.description.split())), is_escaped=True)
        if kind is DocstringSectionKind.raises:
            yield f"- {prose(str(value.annotation))}: {text}"
        elif kind is DocstringSectionKind.returns:
            yield f"- {text}"
        else:
            yield f"- `{value.name}`: {text}"


def prose(text: str, *, is_escaped: bool = False) -> str:
    """Return a text of a docstring as Markdown, with links to the pages, errors and public names in it."""
    text = text if is_escaped else "\n".join(_line(line) for line in text.splitlines())
    text = _NAME.sub(lambda found: f"[{found[1]}]({_LINKED[found[1]]}#{anchor(found[1])})", text)
    return _PAGE.sub(lambda found: f"the page [{found[2]}]({os.path.relpath(found[1], 'reference')})", text)


def _line(line: str) -> str:
    return line if line.startswith("    ") else escaped(line)  # indented lines are code
