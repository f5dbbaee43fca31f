"""Markdown of docstrings, which are written in Google's style."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from inspect import cleandoc
from typing import Any

from griffe import Docstring, DocstringSection, DocstringSectionKind

from scripts.reference_pages.markdown import anchor, escaped, sentence
from tokenloom import errors

ERRORS_PAGE = "errors.md"
_ERROR_NAMES = [name for name, item in vars(errors).items() if isinstance(item, type) and issubclass(item, Exception)]
_ERROR = re.compile(rf"(?<![\w`\[])({'|'.join(_ERROR_NAMES)})(?!\w)")
_PAGE = re.compile(r"\bdocs/((?:guides|concepts|project)/([\w-]+)\.md|reference/([\w-]+\.md))")


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
    """Return a text of a docstring as Markdown, with links to the errors and to the pages that it names."""
    text = text if is_escaped else "\n".join(_line(line) for line in text.splitlines())
    text = _ERROR.sub(lambda found: f"[{found[1]}]({ERRORS_PAGE}#{anchor(found[1])})", text)
    return _PAGE.sub(lambda found: f"[{found[1]}]({found[3] or '../' + found[1]})", text)


def _line(line: str) -> str:
    return line if line.startswith("    ") else escaped(line)  # indented lines are code
