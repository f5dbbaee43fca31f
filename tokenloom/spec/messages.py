"""Rules of a spec in words: what pydantic says as a regular expression, or as the tags of a union."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenloom.spec.base import NAME_PATTERN

# A variable of a shell at the start of a part of a path: $DATA/x, /mnt/${SET}/x, s3://$BUCKET/x.
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


def said_by_pydantic(item: Mapping[str, Any]) -> str:
    """Return the rule that an error of pydantic states, a regular expression in words."""
    if item["type"] == "string_pattern_mismatch":
        return _PATTERNS[item["ctx"]["pattern"]]
    return str(item["msg"]).removeprefix("Value error, ")


def in_words(text: str) -> str:
    """Return a text that quotes errors of pydantic with their rules as said_by_pydantic states them."""
    for pattern, rule in _PATTERNS.items():
        text = text.replace(f"String should match pattern '{pattern}'", rule)
    return text.replace(": Value error, ", ": ")


def did_you_mean(given: str, allowed: Sequence[str]) -> str:
    """Return what is allowed, after the one that is close to what was given if one is."""
    close = difflib.get_close_matches(given.lower(), allowed, n=1)
    hint = f"Did you mean {close[0]}? " if close else ""
    return f"{hint}Allowed: {', '.join(allowed)}"


def unexpanded_variable(path: str, folder: str) -> str | None:
    """Return the variable in a path that its author expected to be expanded; None if there is none.

    Args:
        path: as the spec spells it. A local file or folder that is really named so is no variable.
        folder: local path or URL that relative paths count from.
    """
    found = _VARIABLE.search(path)
    if not found:
        return None
    if "://" in path or ("://" in folder and not path.startswith("/")):  # a bucket can't have such a name, a key can
        return found[1] if path[: found.start(1)].endswith("://") else None
    literal = path[: found.end(1)] + path[found.end(1) :].partition("/")[0]
    return None if Path(folder, literal).exists() else found[1]
