"""Show names of columns and keys in messages: simple names as they are, others as JSON, which is YAML too.

An option such as `text` is the name of a column. The filter contains names of columns, so messages word it differently.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from tokenloom.errors import InputError

_PLAIN = re.compile(r"[\w.-]+")
_MAX_NAMES = 50
_MAX_CHARS = 100
_JSON_TYPES = {str: "a string", list: "an array", dict: "an object", bool: "a boolean", type(None): "null"}


def shown_names(names: Iterable[str]) -> str:
    """Return a list of names to copy into a spec, with long names cut; "none" for no names.

    Example: ["text", "a, b", ""] -> 'text, "a, b", ""'
    """
    names = iter(names)
    shown = [_shown(str(name)) for name in islice(names, _MAX_NAMES)]
    num_more = sum(1 for _ in names)
    return (", ".join(shown) or "none") + (f" and {num_more} more" if num_more else "")


def _shown(name: str) -> str:
    if len(name) > _MAX_CHARS:
        name = name[:_MAX_CHARS] + "..."
    name = name if _PLAIN.fullmatch(name) else json.dumps(name, ensure_ascii=False)
    return name.encode("utf-8", "backslashreplace").decode()  # a lone surrogate can't be printed or logged


def wanted_column(key: str, name: str) -> str:
    """Return how a message shows a column that the option `key` names: "'score', which the filter names"."""
    return f"{name!r}, which the filter names" if key == "filter" else repr(name)


def column_error(url: str, key: str, name: str, names: Sequence[str], check: str = "") -> InputError:
    """Return the error for a column that a file does not have exactly once.

    Args:
        url: the file's path or URL.
        key: the key of the spec that names the column: text, id or filter.
        name: the column's name.
        names: those of all columns.
        check: what else may be wrong, before the advice to name another column.
    """
    found, change = "two columns" if name in names else "no column", change_option(key)
    advice = f"{check}, or {change}" if check else change.capitalize()
    return InputError(
        f"{url}: {found} {wanted_column(key, name)}; its columns are: {shown_names(names)}. {advice} one of them"
    )


def change_option(key: str) -> str:
    """Return the advice to let the option `key` name another column, which follows: "set text: to"."""
    return "change filter: to name" if key == "filter" else f"set {key}: to"


def json_type(value: Any) -> str:
    """Return the type of a JSON value with its article: "a number", "an object"."""
    return _JSON_TYPES.get(type(value), "a number")
