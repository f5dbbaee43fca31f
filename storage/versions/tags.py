"""Tags: movable names of versions, each a log of numbered entries, `tags/TAG/00000001.json` and so on.

Each entry is created exclusively and never changes, so one of two movers gets an error. The highest number is the
current entry. An entry says its tag and its number too, so that a copy under another name is found.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field

from tokenloom.errors import FormatError
from tokenloom.storage.formats.manifest import Name, VersionName
from tokenloom.storage.formats.records import decode_record, parse_json
from tokenloom.storage.stores.store import Store

LATEST, TRYOUT = "latest", "tryout"  # the tags that builds and try-outs move
BUILD_REASON = "build"  # any other reason means that a person moved the tag
_ENTRY = re.compile(r"(?!0{8})[0-9]{8}\.json\Z")


@dataclass(frozen=True, slots=True)
class TagEntry:
    """One move of a tag, as its file records it; `at` is ISO 8601 in UTC, and `number` counts from 1."""

    version: VersionName
    previous: VersionName | None
    at: str
    by: str
    reason: str
    number: int
    tag: Name | None = field(default=None, metadata={"absent": None})


def entry_path(tag: str, number: int) -> str:
    """Return the path of entry `number` of a tag, relative to the dataset's folder."""
    return f"tags/{tag}/{number:08d}.json"


def entry_numbers(store: Store, tag: str) -> list[int]:
    """Return the sorted numbers of the files that are named as entries of a tag."""
    return sorted(int(name[:8]) for name in store.names(f"tags/{tag}") if _ENTRY.match(name))


def newest(store: Store, tag: str) -> TagEntry | None:
    """Return the current entry, None if the tag is not set; raises FormatError if it is damaged."""
    numbers = entry_numbers(store, tag)
    return read_entry(store, tag, numbers[-1]) if numbers else None


def log(store: Store, tag: str, problems: dict[str, FormatError] | None = None) -> list[TagEntry]:
    """Return the entries of a tag, oldest first.

    Args:
        store: the dataset's store.
        tag: its name.
        problems: gets the error about each entry that is damaged or missing, by its path.

    Raises FormatError for the first such entry if there is no `problems`, StoreError if the store does not answer.
    """
    numbers = entry_numbers(store, tag)
    entries: list[TagEntry] = []
    found: dict[str, FormatError] = {} if problems is None else problems
    for number, data in zip(numbers, store.read_all([entry_path(tag, each) for each in numbers]), strict=True):
        try:
            entries.append(read_entry(store, tag, number, data))
        except FormatError as error:
            found[entry_path(tag, number)] = error
    for number in sorted({entry.number - 1 for entry in entries} - {0, *numbers}):  # the last of each gap
        path = entry_path(tag, number)
        found[path] = FormatError(f"{store.place(path)}: an entry of the log is missing; restore it")
    if problems is None and found:
        raise next(iter(found.values()))
    return entries


def read_entry(store: Store, tag: str, number: int, data: bytes | None = None) -> TagEntry:
    """Return entry `number`, from the bytes of its file if they were read; raises FormatError if it is damaged."""
    path = entry_path(tag, number)
    place = store.place(path)
    try:
        data = store.read(path) if data is None else data
    except FileNotFoundError as error:
        raise FormatError(f"{place}: an entry of the log is missing; restore it") from error
    entry = decode_record(TagEntry, parse_json(data, place, is_signed=True), place)
    if (entry.tag or tag, entry.number) != (tag, number):
        raise FormatError(
            f"{place}: it is a copy of entry {entry.number} of {entry.tag or tag} under another name; remove it"
        )
    return entry


def tagged_versions(store: Store) -> dict[str, list[str]]:
    """Return the tags of each version that the newest entry of a tag names; raises FormatError if one is damaged."""
    found: dict[str, list[str]] = {}
    for tag in store.names("tags"):
        if entry := newest(store, tag):
            found.setdefault(entry.version, []).append(tag)
    return found


def warn_if_untagged(store: Store, version: str, stacklevel: int) -> None:
    """Warn (UserWarning) that no tag names a version, so that gc may delete it while it is read.

    Args:
        store: the dataset's store.
        version: its name.
        stacklevel: as for warnings.warn, counted from this function.
    """
    try:
        is_tagged = version in tagged_versions(store)
    except FormatError:  # while a tag is damaged, gc deletes nothing
        return
    if not is_tagged:
        reference = f"{store.root}@{version}"
        warnings.warn(
            f"no tag names {reference}, so `tokenloom gc` may delete it while you train; "
            f"keep it: `tokenloom tag {reference} NAME`",
            stacklevel=stacklevel + 1,
        )
