"""Tags: movable names of versions, each a log of numbered entries, `tags/TAG/00000001.json` and so on.

Each entry is created exclusively and never changes, so one of two movers gets an error. The highest number is the
current entry. An entry says its number too, so that a copy under another name is found.
"""

from __future__ import annotations

import datetime
import os
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from tokenloom.errors import FormatError, SpecError, StoreError
from tokenloom.storage.formats.manifest import NAME_PATTERN, Manifest, VersionName
from tokenloom.storage.formats.records import decode_record, parse_json, sign
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import check_lengths, refuse_deleted

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


def newest_number(store: Store, tag: str) -> int:
    """Return the number of the current entry of `tag`, 0 if there is none; raises FormatError if it is damaged."""
    entry = newest(store, tag)
    return entry.number if entry else 0


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
            entries.append(read_entry(store, tag, number, data or None))
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
    except StoreError as error:
        if not store.is_damage(error):
            raise
        raise FormatError(str(error)) from error  # a folder or a pipe in its place, for instance
    entry = decode_record(TagEntry, parse_json(data, place, is_signed=True), place)
    if entry.number != number:
        raise FormatError(f"{place}: it is a copy of entry {entry.number} under another name; remove it")
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


def move(store: Store, tag: str, version: str, seen_number: int, reason: str) -> TagEntry:
    """Move `tag` to `version`, if its newest entry is still number `seen_number`.

    Raises:
        FileExistsError: the tag has moved since.
        FormatError: its newest entry is damaged.
        StoreError: the store can't be written.
    """
    previous = read_entry(store, tag, seen_number).version if seen_number else None
    entry = TagEntry(version, previous, now(), user(), reason, seen_number + 1)
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
