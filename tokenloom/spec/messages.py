"""Translate pydantic's errors about a spec: regular expressions become rules in words, near misses get a hint."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenloom.spec.base import NAME_PATTERN

# A shell variable at the start of a part of a path: $DATA/x, /mnt/${SET}/x, s3://$BUCKET/x.
_VARIABLE = re.compile(r"(?:^|/)(\$(?:\w+|\{\w+\}))")
_PATTERNS = {
    NAME_PATTERN: "must be a lower-case letter, then at most 63 lower-case letters, digits, '.', '_' or '-'",
    r"^[a-z][a-z0-9_-]{0,31}$": "must be a lower-case letter, then at most 31 lower-case letters, digits, '_' or '-'",
    r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$": "must name a function as package.module:function",
    r'^[^"\r\n\x00]': "must be one character, not a double quote, a line end or NUL",
    r"^[\w.-]+$": "must be letters, digits, '.', '_' or '-'",
    "^[a-z][a-z0-9+.-]*$": "must be a lower-case letter, then lower-case letters, digits, '+', '.' or '-'",
    "^[a-z0-9-]+$": "must be lower-case letters, digits or '-'",
}


def pydantic_rule(item: Mapping[str, Any]) -> str:
    """Return the rule that a pydantic error states, with a regular expression put in words."""
    if item["type"] == "string_pattern_mismatch":
        return _PATTERNS[item["ctx"]["pattern"]]
    return str(item["msg"]).removeprefix("Value error, ")


def with_rules_in_words(text: str) -> str:
    """Return a text that quotes pydantic errors, with their rules as pydantic_rule returns them."""
    for pattern, rule in _PATTERNS.items():
        text = text.replace(f"String should match pattern '{pattern}'", rule)
    return text.replace(": Value error, ", ": ")


def did_you_mean(given: str, allowed: Sequence[str]) -> str:
    """Return the allowed values, preceded by the one closest to what was given, if one is close."""
    close = difflib.get_close_matches(given.lower(), allowed, n=1)
    hint = f"Did you mean {close[0]}? " if close else ""
    return f"{hint}Allowed: {', '.join(allowed)}"


def unexpanded_variable(path: str, folder: str) -> str | None:
    """Return the shell variable in a path that its author expected to be expanded; None if there is none.

    Args:
        path: as the spec spells it. If a local file or folder has this very name, it is not a variable.
        folder: the local path or URL that relative paths start from.
    """
    found = _VARIABLE.search(path)
    if not found:
        return None
    if "://" in path or ("://" in folder and not path.startswith("/")):  # a key may contain $, a bucket's name may not
        return found[1] if path[: found.start(1)].endswith("://") else None
    literal = path[: found.end(1)] + path[found.end(1) :].partition("/")[0]
    return None if Path(folder, literal).exists() else found[1]
