"""Tags: movable names of versions, each a log of numbered entries. The highest number is the current entry.

A tag is moved by the exclusive create of number + 1, so one of two movers gets an error. Entries never change.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenloom.storage.formats.names import VERSION_PATTERN
from tokenloom.storage.formats.records import Mismatch
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.numbered_entries import EntryLog
from tokenloom.storage.versions.numbered_entries import now as now
from tokenloom.storage.versions.numbered_entries import user as user

LATEST, TRYOUT = "latest", "tryout"  # the tags that builds and try-outs move
BUILD_REASON = "build"  # any other reason means that a person moved the tag


@dataclass(frozen=True, slots=True)
class TagEntry:
    """One move of a tag, as its file records it; `at` is ISO 8601 in UTC, and `number` counts from 1."""

    version: str
    previous: str | None
    at: str
    by: str
    reason: str
    number: int


def tag_log(store: Store, tag: str) -> EntryLog[TagEntry]:
    """Return the log of the moves of a tag."""
    return EntryLog(store, f"tags/{tag}", TagEntry, _check)


def _check(entry: TagEntry) -> None:
    for field, version in (("version", entry.version), ("previous", entry.previous)):
        if version is not None and not VERSION_PATTERN.match(version):
            raise Mismatch(field, "16 hexadecimal digits")


def newest_number(store: Store, tag: str) -> int:
    """Return the number of the current entry of `tag`, 0 if there is none; raises FormatError if it is damaged."""
    return tag_log(store, tag).newest_number()


def newest(store: Store, tag: str) -> TagEntry | None:
    """Return the current entry, None if the tag is not set; raises FormatError if it is damaged."""
    return tag_log(store, tag).newest()


def log(store: Store, tag: str) -> list[TagEntry]:
    """Return all entries of `tag`, oldest first; raises FormatError if one is damaged or missing."""
    return tag_log(store, tag).entries()


def move(store: Store, tag: str, version: str, seen_number: int, reason: str) -> TagEntry:
    """Move `tag` to `version`, if its newest entry is still number `seen_number`; un-retire the version.

    Raises:
        FileExistsError: the tag has moved since.
        VersionDeleted: the version is deleted, or is being deleted.
        FormatError, StoreError: as EntryLog.append.
    """
    from tokenloom.storage.versions.leases import TAG, TAG_SECONDS, leasing  # a reader moves no tag

    moves = tag_log(store, tag)
    previous = moves.read(seen_number).version if seen_number else None
    entry = TagEntry(version, previous, now(), user(), reason, seen_number + 1)
    with leasing(store, version, TAG, TAG_SECONDS):  # until the entry is visible, no collector deletes the version
        return moves.append(entry)


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
    if (entries[-1].number if entries else 0) != seen_number:
        return f"{tag} was moved to {entries[-1].version if entries else 'nothing'} while this build ran"
    if entries and entries[-1].reason != BUILD_REASON and version in {entry.version for entry in entries}:
        return f"{tag} was set to {entries[-1].version} by hand ({entries[-1].reason}) after it named {version}"
    try:
        move(store, tag, version, seen_number, BUILD_REASON)
    except FileExistsError:
        moved = tag_log(store, tag).read(seen_number + 1)
        return None if moved.version == version else f"{tag} was moved to {moved.version} at the same moment"
    return None
