"""Moves of tags: by builds, by hand, and back. One of two processes that move a tag at one moment gets an error."""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence

from tokenloom.errors import SpecError, StoreError
from tokenloom.storage.formats.manifest import NAME_PATTERN, Manifest
from tokenloom.storage.formats.records import sign
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import check_lengths, refuse_deleted
from tokenloom.storage.versions.tags import BUILD_REASON, LATEST, TagEntry, entry_path, log, newest, read_entry


def newest_number(store: Store, tag: str) -> int:
    """Return the number of the current entry of `tag`, 0 if there is none; raises FormatError if it is damaged."""
    entry = newest(store, tag)
    return entry.number if entry else 0


def move(store: Store, tag: str, version: str, seen_number: int, reason: str) -> TagEntry:
    """Move `tag` to `version`, if its newest entry is still number `seen_number`.

    Raises:
        FileExistsError: the tag has moved since.
        FormatError: its newest entry is damaged.
        StoreError: the store can't be written.
    """
    previous = read_entry(store, tag, seen_number).version if seen_number else None
    entry = TagEntry(version, previous, now(), user(), reason, seen_number + 1, tag)
    store.create(entry_path(tag, entry.number), sign(entry))
    return entry


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
        moved = read_entry(store, tag, seen_number + 1)
        return None if moved.version == version else f"{tag} was moved to {moved.version} at the same moment"
    return None


def check_tag(tag: str) -> None:
    """Raise SpecError if `tag` can't be the name of a tag."""
    if not NAME_PATTERN.match(tag):
        raise SpecError(f"{tag!r} is not a valid tag: a-z, then up to 63 of a-z 0-9 . _ -, not 16 hexadecimal digits")


def move_by_hand(
    store: Store, tag: str, manifest: Manifest, seen: TagEntry | None, reason: str, *, allow_tryout: bool = False
) -> TagEntry:
    """Move a tag to a published version because a person says so; return its newest entry, `seen` if it stays.

    Args:
        store: the dataset's store.
        tag: its name.
        manifest: of the version that it will name.
        seen: its newest entry as the person knows it, None if there is none.
        reason: why, for the log; one line.
        allow_tryout: let `latest` name a try-out.

    Raises:
        SpecError: the tag or the reason is not valid, or `latest` would name a try-out.
        FormatError: a file of the version is missing or cut short.
        StoreError: the tag has moved since `seen` was read; if gc deleted the version meanwhile, VersionDeleted.
    """
    check_tag(tag)
    if not reason.strip() or not reason.isprintable():
        raise SpecError(f"the reason {reason!r} is not one line of text")
    if reason == BUILD_REASON:
        raise SpecError(f"the reason {reason!r} marks the moves of builds; write why you move the tag")
    limit = manifest.spec.get("limit")
    if tag == LATEST and limit is not None and not allow_tryout:
        raise SpecError(
            f"{store.root}@{manifest.version} is a try-out of {limit} documents of each source, and {LATEST} is what "
            "training reads; choose another version or tag, or add --allow-tryout"
        )
    check_lengths(store, manifest)
    if seen and seen.version == manifest.version:
        return seen
    try:
        entry = move(store, tag, manifest.version, seen.number if seen else 0, reason)
    except FileExistsError as error:
        other = read_entry(store, tag, seen.number + 1 if seen else 1)
        raise StoreError(
            f"{store.root}: {tag} was moved to {other.version} by {other.by} ({other.reason}) at the same moment; "
            f"`tokenloom log {store.root} --tag {tag}` shows its moves; run the command again if yours still applies"
        ) from error
    refuse_deleted(store, manifest.version)
    return entry


def version_before(entries: Sequence[TagEntry]) -> str | None:
    """Return the version that a rollback of a tag returns to; None if there is none.

    A person who moves a tag to a version that it named before goes back to that point of its history: a second rollback
    goes back further and does not toggle. A build always adds to the history.

    Example: the builds A, B, C and a rollback to B -> A

    Args:
        entries: the log of the tag, oldest first.
    """
    history: list[str] = []
    for entry in entries:
        if entry.reason != BUILD_REASON and entry.version in history:
            del history[len(history) - history[::-1].index(entry.version) :]  # all after it was named last
        elif history[-1:] != [entry.version]:
            history.append(entry.version)
    return history[-2] if len(history) > 1 else None


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
