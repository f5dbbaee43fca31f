"""An error on a terminal: "error:" in red, then the place, the rule and the next step, each on lines of their own.

error: news.yaml:5: source csv-1: /data/b.csv
  no column 'body'; its columns are: text, n
  -> set text: to one of them

A message is one line, "PLACE: RULE; NEXT STEP" or "PLACE: RULE. Next step", as logs and pipes get it. Parts that
can't be distinguished stay together.
"""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from typing import NamedTuple

# A path or URL, which may hold spaces; or a word such as spec.yaml:5 or documents.min_chars; and where in it.
_PLACE = re.compile(
    r"(?:(?:/|[a-z0-9]+://).*?|[^:'\"]+:\d+|(?:(?:source|store|argument|tokenizer(?: file)?|--[a-z-]+) )?[^\s'\"]+)"
    r"(?: with --set .*?)?(?:, (?:row|line|record|document|position|split|after row|each row)\b.*?)?: "
)
_QUOTED = re.compile(r"`[^`]*`|\"[^\"]*\"|(?<!\w)'[^']*'(?!\w)|\([^()]*\)")
_NEXT = re.compile(r"(?:; |\. (?=[A-Z`]))(?!got |its |Allowed)")
_GOT = re.compile(r"; got (?!.*; ).*\Z")  # the value that broke the rule
_LEAST_COLUMNS = 40


class Parts(NamedTuple):
    """The parts of a message; a place or a next step that it does not have is empty."""

    place: str
    rule: str
    next_step: str


def parts_of(message: str) -> Parts:
    """Return the parts of a message of one line."""
    start = 0
    while found := _PLACE.match(message, start):
        start = found.end()
    hidden = _QUOTED.sub(lambda quoted: "x" * len(quoted[0]), message)
    got = _GOT.search(hidden, start)
    last = got.start() if got else len(message)
    ends = [found.span() for found in _NEXT.finditer(hidden, start, last)]
    end, following = ends[-1] if ends else (last, last)
    return Parts(message[:start].removesuffix(": "), message[start:end] + message[last:], message[following:last])


def write_error(message: str, hint: str = "") -> None:
    """Write an error to a terminal, on stderr.

    Args:
        message: one line for each problem.
        hint: a next step for all of them.
    """
    for problem in message.split("\n"):
        place, rule, next_step = parts_of(problem)
        first, *others = [text for text in (place, rule) if text] or [problem]
        _write_label()
        sys.stderr.write(f"{first}\n" if first == place else f"{_wrapped(first, '', '  ', 7)}\n")
        for text in others:
            sys.stderr.write(_wrapped(text, "  ", "  ") + "\n")
        for text in filter(None, (next_step, hint)):
            sys.stderr.write(_wrapped(text, "  -> ", "     ") + "\n")


def _write_label() -> None:
    """Write "error: ", in red where the package rich is, which obeys NO_COLOR."""
    try:
        from rich.console import Console
    except ModuleNotFoundError:  # an installation that only reads
        sys.stderr.write("error: ")
    else:
        Console(stderr=True).print("error:", style="bold red", end=" ")


def _wrapped(text: str, first: str, following: str, used: int = 0) -> str:
    """Return a text in lines that fit the terminal; a word or a command in backticks is never broken.

    Args:
        text: of one line.
        first: what precedes the first line.
        following: what precedes the other lines.
        used: columns of the first line that are written already.
    """
    width = max(_LEAST_COLUMNS, shutil.get_terminal_size().columns)
    whole = re.sub("`[^`]*`", lambda command: command[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(
        whole,
        width,
        initial_indent=first or " " * used,
        subsequent_indent=following,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace("\0", " ")[used:]
