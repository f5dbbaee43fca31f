"""Texts of a spec: the patterns of names, with their rules in words, and wildcards in paths. Workers import it.

`*`, `?` and `[...]` match within one part of a path; `**`, as a whole part, matches any number of parts. A wildcard in
brackets is an ordinary character: "exp[[]1]" is the name "exp[1]".
"""

from __future__ import annotations

import re

NAME_PATTERN = r"^[a-z][a-z0-9._-]{0,63}$"
MODEL_NAME_PATTERN = r"^(?:[A-Za-z0-9_][A-Za-z0-9._-]{0,95}/)?[A-Za-z0-9_][A-Za-z0-9._-]{0,95}$"
#: each rule follows "must be"
RULES = {
    NAME_PATTERN: "a lower-case letter, then at most 63 lower-case letters, digits, '.', '_' or '-'",
    MODEL_NAME_PATTERN: "a name such as org/model, of letters, digits, '.', '_' and '-'; give a file as path",
    r"^[a-z][a-z0-9_-]{0,31}$": "a lower-case letter, then at most 31 lower-case letters, digits, '_' or '-'",
    r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$": "the name of a function, as package.module:function",
    r'^[^"\r\n\x00]': "one character, not a double quote, a line end or NUL",
    r"^[^\r\n\x00]*$": "one character, not a line end or NUL",
    r"^[\w.-]+$": "letters, digits, '.', '_' or '-'",
    "^[a-z][a-z0-9+.-]*$": "a lower-case letter, then lower-case letters, digits, '+', '.' or '-'",
    "^[a-z0-9-]+$": "lower-case letters, digits or '-'",
}
LAYOUTS = ("messages", "sharegpt", "alpaca", "prompt_completion")  # chat/layouts.py reads them
WHOLE_ROW = "."  # the `text` or `messages` of a source whose rows are texts or conversations themselves
_WILDCARD = re.compile(r"\[([*?[])\]|[*?[]")


def escaped(path: str) -> str:
    """Return the pattern that matches a path alone."""
    return re.sub(r"([*?[])", r"[\1]", path)


def first_wildcard(pattern: str) -> int | None:
    """Return the position of the first wildcard, None if there is none; escaped ones are skipped."""
    return next((found.start() for found in _WILDCARD.finditer(pattern) if not found[1]), None)


def literal(pattern: str) -> str:
    """Return the path that a pattern without wildcards matches."""
    return _WILDCARD.sub(lambda found: found[1] or found[0], pattern)


def root_of(pattern: str) -> str:
    """Return the root of a pattern, which has no protocol: up to the last "/" before the first wildcard."""
    return literal(pattern[: pattern.rfind("/", 0, first_wildcard(pattern)) + 1])


def check_pattern(pattern: str) -> str:
    """Return the pattern; raise ValueError if it begins with !, # or /, or ends with /."""
    if not pattern.strip() or pattern.startswith(("!", "#", "/")) or pattern.endswith("/"):
        raise ValueError(
            f'{pattern!r} is not a pattern of files; write "*.tmp" for names, "drafts/*" for a folder, [!] or [#] for '
            "a name that begins so"
        )
    return pattern
