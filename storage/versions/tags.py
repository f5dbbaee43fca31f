"""Tags: movable names of versions, each a log of numbered entries. The highest number is the current entry.

A tag is moved by the exclusive create of number + 1, so one of two movers gets an error. Entries never change.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from tokenloom.errors import FormatError
from tokenloom.storage.formats.canonical import read_signed, sign_record
from tokenloom.storage.formats.names import VERSION_PATTERN
from tokenloom.storage.formats.records import Mismatch, decode_record, fields_of
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.numbered_entries import entry_name, entry_numbers
from tokenloom.storage.versions.numbered_entries import now as now
from tokenloom.storage.versions.numbered_entries import user as user

LATEST, TRYOUT = "latest", "tryout"  # the tags that builds and try-outs move
BUILD_REASON = "build"  # any other reason means that a person moved the tag


@dataclass(frozen=True, slots=True)
class TagRecord:
    """One move of a tag, as its file records it; `at` is ISO 8601 in UTC."""

    version: str
    previous: str | None
    at: str
    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class TagEntry(TagRecord):
    """One move of a tag; `number` counts from 1."""

    number: int


def newest_number(store: Store, tag: str) -> int:
    """Return the number of the newest entry of `tag`, 0 if there is none."""
    return max(entry_numbers(store.names(f"tags/{tag}")), default=0)


def newest(store: Store, tag: str) -> TagEntry | None:
    """Return the current entry, None if the tag is not set; raises FormatError if it is damaged."""
    number = newest_number(store, tag)
    return read_entry(store, tag, number) if number else None


def read_entry(store: Store, tag: str, number: int) -> TagEntry:
    """Return entry `number` of `tag`; raises FormatError if it is damaged."""
    try:
        data = store.read(entry_path(tag, number))
    except FileNotFoundError:
        data = None
    return _decode(store, tag, number, data)


def _decode(store: Store, tag: str, number: int, data: bytes | None) -> TagEntry:
    """Return the entry in the bytes of its file, None if it is missing; raises FormatError if it is damaged."""
    place = store.place(entry_path(tag, number))
    if data is None:
        raise FormatError(f"{place}: an entry of the tag's log is missing")
    try:
        value = read_signed(data, place)
        record = decode_record(TagRecord, value)
    except Mismatch as error:
        raise FormatError(f"{place}: in a tag entry, {error}") from error
    if unknown := sorted(value.keys() - fields_of(record).keys()):
        raise FormatError(f"{place}: a tag entry has no field {unknown[0]!r}")
    for field, version in (("version", record.version), ("previous", record.previous)):
        if version is not None and not VERSION_PATTERN.match(version):
            raise FormatError(f"{place}: in a tag entry, {field} must be 16 hexadecimal digits")
    return TagEntry(**asdict(record), number=number)


def log(store: Store, tag: str) -> list[TagEntry]:
    """Return all entries of `tag`, oldest first."""
    numbers = range(1, newest_number(store, tag) + 1)
    files = store.read_all([entry_path(tag, number) for number in numbers])
    return [_decode(store, tag, number, data) for number, data in zip(numbers, files, strict=True)]


def move(store: Store, tag: str, version: str, seen_number: int, reason: str) -> TagEntry:
    """Move `tag` to `version`, if its newest entry is still number `seen_number`; un-retire the version.

    Raises:
        FileExistsError: the tag has moved since.
        VersionDeleted: the version is deleted, or is being deleted.
    """
    from tokenloom.storage.versions.leases import TAG, TAG_SECONDS, leasing  # a reader moves no tag

    number = seen_number + 1
    previous = read_entry(store, tag, seen_number).version if seen_number else None
    record = TagRecord(version, previous, now(), user(), reason)
    with leasing(store, version, TAG, TAG_SECONDS):  # until the entry is visible, no collector deletes the version
        store.create(entry_path(tag, number), sign_record(record))
    return read_entry(store, tag, number)


def tagged_versions(store: Store) -> dict[str, list[str]]:
    """Return the tags of each version that the newest entry of a tag names; raises FormatError if one is damaged."""
    found: dict[str, list[str]] = {}
    for tag in store.names("tags"):
        if entry := newest(store, tag):
            found.setdefault(entry.version, []).append(tag)
    return found


def move_by_build(store: Store, tag: str, version: str, seen_number: int) -> str | None:
    """Move `tag` to a version that was just built, unless that would undo a move by a person or by a newer build.

    The tag stays if it has moved since number `seen_number` was read, or if a person made its newest entry and the log
    already has `version`: a rollback stays rolled back, and a slow old build does not win.

    Returns:
        Why the tag was not moved; None if it names `version` now.
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


def entry_path(tag: str, number: int) -> str:
    """Return the path of entry `number` of a tag's log, relative to the dataset's folder."""
    return f"tags/{tag}/{entry_name(number)}"
