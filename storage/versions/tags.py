"""Tags: movable names of versions, each a log of numbered entries of which the highest counts.

Moving a tag is the exclusive create of number + 1, so of two movers one is told. Entries are never changed.
"""

from __future__ import annotations

import datetime
import getpass
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tokenloom.errors import FormatError
from tokenloom.storage.formats.canonical import read_signed, sign
from tokenloom.storage.formats.names import VERSION_PATTERN
from tokenloom.storage.stores.store import Store

_ENTRY = re.compile(r"(?!0{8})[0-9]{8}\.json\Z")
BUILD_REASON = "build"  # any other reason means that a person moved the tag


@dataclass(frozen=True)
class TagEntry:
    """One move of a tag; `number` counts from 1, `at` is ISO 8601 in UTC."""

    number: int
    version: str
    previous: str | None
    at: str
    by: str
    reason: str


def entry_numbers(names: Iterable[str]) -> list[int]:
    """Return the sorted numbers of the entries among the names in a tag's folder."""
    return sorted(int(name[:8]) for name in names if _ENTRY.match(name))


def newest_number(store: Store, tag: str) -> int:
    """Return the number of the newest entry of `tag`, 0 if there is none."""
    return max(entry_numbers(store.names(f"tags/{tag}")), default=0)


def newest(store: Store, tag: str) -> TagEntry | None:
    """Return the entry that counts, None if the tag was never set; raises FormatError if it is damaged."""
    number = newest_number(store, tag)
    return read_entry(store, tag, number) if number else None


def read_entry(store: Store, tag: str, number: int) -> TagEntry:
    """Return entry `number` of `tag`; raises FormatError if it is damaged."""
    path = entry_path(tag, number)
    try:
        value = read_signed(store.read(path), store.place(path))
    except FileNotFoundError as error:
        raise FormatError(f"{store.place(path)}: an entry of the tag's log is missing") from error
    fields = ("version", "previous", "at", "by", "reason")
    if set(value) != set(fields):
        raise FormatError(f"{store.place(path)}: a tag entry has the fields {', '.join(fields)}")
    if not _is_entry(value):
        raise FormatError(f"{store.place(path)}: its versions must be 16 hexadecimal digits, its other fields text")
    return TagEntry(number, **value)


def _is_entry(value: dict[str, Any]) -> bool:
    names = [value["version"], *([] if value["previous"] is None else [value["previous"]])]
    is_text = all(isinstance(text, str) for text in (*names, value["at"], value["by"], value["reason"]))
    return is_text and all(VERSION_PATTERN.match(name) for name in names)


def log(store: Store, tag: str) -> list[TagEntry]:
    """Return all entries of `tag`, oldest first."""
    return [read_entry(store, tag, n) for n in range(1, newest_number(store, tag) + 1)]


def move(store: Store, tag: str, version: str, seen_number: int, reason: str) -> TagEntry:
    """Let `tag` name `version`, if its newest entry is still number `seen_number`.

    Raises FileExistsError if somebody else moved it since.
    """
    number = seen_number + 1
    previous = read_entry(store, tag, seen_number).version if seen_number else None
    at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    entry = {"version": version, "previous": previous, "at": at, "by": _user(), "reason": reason}
    store.create(entry_path(tag, number), sign(entry))
    return read_entry(store, tag, number)


def move_by_build(store: Store, tag: str, version: str, seen_number: int) -> str | None:
    """Move `tag` to a version that was just built, unless that would undo what a person or a newer build did.

    It stays if it moved since number `seen_number` was read, or if its newest entry was made by hand and
    `version` already stood in the log (so a rollback stays rolled back, and a slow old build does not win).

    Returns:
        Why the tag was left alone; None if it names `version` now.
    """
    entries = log(store, tag)
    if entries and entries[-1].version == version:
        return None
    if len(entries) != seen_number:
        return f"{tag} was moved to {entries[-1].version if entries else 'nothing'} while this build ran"
    if entries and entries[-1].reason != BUILD_REASON and version in {entry.version for entry in entries}:
        return f"{tag} was set to {entries[-1].version} by hand ({entries[-1].reason}) after it named {version}"
    try:
        move(store, tag, version, seen_number, BUILD_REASON)
    except FileExistsError:
        moved = read_entry(store, tag, seen_number + 1)
        return None if moved.version == version else f"{tag} was moved to {moved.version} at the same moment"
    return None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user often has no name
        return f"uid {os.getuid()}"


def entry_path(tag: str, number: int) -> str:
    """Return where entry `number` of a tag's log lies, relative to the dataset's folder."""
    return f"tags/{tag}/{number:08d}.json"
