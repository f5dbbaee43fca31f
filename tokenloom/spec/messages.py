"""Translate pydantic's errors about a spec: each becomes a rule in words."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenloom.spec.base import NAME_PATTERN
from tokenloom.spec.tokenizers import MODEL_NAME_PATTERN

_MAX_SHOWN = 10**15
# A shell variable at the start of a part of a path: $DATA/x, /mnt/${SET}/x, s3://$BUCKET/x.
_VARIABLE = re.compile(r"(?:^|/)(\$(?:\w+|\{\w+\}))")
_PATTERNS = {
    NAME_PATTERN: "must be a lower-case letter, then at most 63 lower-case letters, digits, '.', '_' or '-'",
    MODEL_NAME_PATTERN: "must be a name such as org/model, of letters, digits, '.', '_' and '-'; give a file as path",
    r"^[a-z][a-z0-9_-]{0,31}$": "must be a lower-case letter, then at most 31 lower-case letters, digits, '_' or '-'",
    r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$": "must name a function as package.module:function",
    r'^[^"\r\n\x00]': "must be one character, not a double quote, a line end or NUL",
    r"^[^\r\n\x00]*$": "must be one character, not a line end or NUL",
    r"^[\w.-]+$": "must be letters, digits, '.', '_' or '-'",
    "^[a-z][a-z0-9+.-]*$": "must be a lower-case letter, then lower-case letters, digits, '+', '.' or '-'",
    "^[a-z0-9-]+$": "must be lower-case letters, digits or '-'",
}
# Messages of pydantic, and the rule that each of them states.
_RULES = [
    (re.compile(message), rule)
    for message, rule in (
        (r"Input should be greater than or equal to (\S+)", r"must be at least \1"),
        (r"Input should be less than or equal to (\S+)", r"must be at most \1"),
        (r"Input should be greater than (\S+)", r"must be more than \1"),
        (r"Input should be a finite number", "must be a finite number"),
        (r"Input should be a valid integer(, .*)?", "must be an integer"),
        (r"Input should be a valid number(, .*)?", "must be a number"),
        (r"Input should be a valid boolean(, .*)?", "must be true or false"),
        (r"Input should be a valid string", "must be text"),
        (r"Input should be a valid list", "must be a list"),
        (r"Input should be a valid dictionary( or .*)?", "must be a mapping of keys"),
        (r"Input should be ('.*')", r"must be \1"),
        (r"String should have at least 1 character|List should have at least 1 item.*", "must not be empty"),
        (r"String should have at most 1 character", "must be one character"),
        (r"Keys should be strings", "keys must be text"),
        (r"Value error, ", ""),
    )
]


def pydantic_rule(item: Mapping[str, Any]) -> str:
    """Return the rule that a pydantic error states, in words."""
    if item["type"] == "string_pattern_mismatch":
        return _PATTERNS[item["ctx"]["pattern"]]
    return with_rules_in_words(str(item["msg"])) + _as_intended(item["type"], item.get("input"))


def with_rules_in_words(text: str) -> str:
    """Return a text that quotes pydantic errors, with their rules as pydantic_rule returns them."""
    for pattern, rule in _PATTERNS.items():
        text = text.replace(f"String should match pattern '{pattern}'", rule)
    for message, rule in _RULES:
        text = message.sub(rule, text)
    return text


def _as_intended(problem: str, value: Any) -> str:
    """Return how to write a value of the wrong type, if that is clear: 1e6, a text in YAML, as an integer."""
    if problem == "string_type" and isinstance(value, int | float):
        return ", in quotes"
    try:
        number = float(value) if problem.startswith("int_") and isinstance(value, str | float) else math.nan
    except ValueError:
        return ""
    return f", such as {int(number)}" if number.is_integer() and abs(number) < _MAX_SHOWN else ""


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
