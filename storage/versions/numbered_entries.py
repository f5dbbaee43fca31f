"""Numbered entries of a log: `00000001.json` and so on. Each is created exclusively; the highest number counts."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Iterable

_ENTRY = re.compile(r"(?!0{8})[0-9]{8}\.json\Z")


def entry_name(number: int) -> str:
    """Return the name of entry `number`, which counts from 1."""
    return f"{number:08d}.json"


def entry_numbers(names: Iterable[str]) -> list[int]:
    """Return the sorted numbers of the entries among the names in the folder of a log."""
    return sorted(int(name[:8]) for name in names if _ENTRY.match(name))


def now() -> str:
    """Return the time of this machine for people: ISO 8601, in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def user() -> str:
    """Return the name of this user, for people."""
    import getpass  # a reader does not need it

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user often has no name
        return f"uid {os.getuid()}"
