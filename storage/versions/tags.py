"""Tags: movable names of versions, each a log of numbered entries, `tags/TAG/00000001.json` and so on.

Each entry is created exclusively and never changes, so one of two movers gets an error. The highest number is the
current entry. An entry says its number too, so that a file that was copied or renamed into a log is not an entry:
readers skip it, and `log`, `ls` and `verify` report it.
"""

from __future__ import annotations

import datetime
import os
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from tokenloom.errors import FormatError, SpecError, StoreError, message_of
from tokenloom.storage.formats.canonical import read_signed, sign_record
from tokenloom.storage.formats.manifest import Manifest
from tokenloom.storage.formats.names import NAME_PATTERN, VERSION_PATTERN
from tokenloom.storage.formats.records import Mismatch, decode_record
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import check_lengths, refuse_deleted

LATEST, TRYOUT = "latest", "tryout"  # the tags that builds and try-outs move
BUILD_REASON = "build"  # any other reason means that a person moved the tag
_ENTRY = re.compile(r"(?!0{8})[0-9]{8}\.json\Z")


@dataclass(frozen=True, slots=True)
class TagEntry:
    """One move of a tag, as its file records it; `at` is ISO 8601 in UTC, and `number` counts from 1."""

    version: str
    previous: str | None
    at: str
    by: str
    reason: str
    number: int


class StrayEntry(FormatError):
    """A file is named as an entry of a log and says another number."""


class TagLog:
    """The log of the moves of a tag.

    Args:
        store: the dataset's store.
        tag: its name.
    """

    def __init__(self, store: Store, tag: str) -> None:
        self._store, self._folder = store, f"tags/{tag}"

    def path(self, number: int) -> str:
        """Return the path of entry `number`, relative to the dataset's folder."""
        return f"{self._folder}/{number:08d}.json"

    def numbers(self) -> list[int]:
        """Return the sorted numbers of the files that are named as entries."""
        return sorted(int(name[:8]) for name in self._store.names(self._folder) if _ENTRY.match(name))

    def newest(self) -> TagEntry | None:
        """Return the entry that counts, None if there is none; raises FormatError if it is damaged."""
        for number in reversed(self.numbers()):
            try:
                return self.read(number)
            except StrayEntry:
                continue
        return None

    def newest_number(self) -> int:
        """Return the number of the entry that counts, 0 if there is none; raises FormatError if it is damaged."""
        newest = self.newest()
        return newest.number if newest else 0

    def read(self, number: int, data: bytes | None = None) -> TagEntry:
        """Return entry `number`, from the bytes of its file if they were read; raises FormatError if it is damaged."""
        place = self._store.place(self.path(number))
        try:
            data = self._store.read(self.path(number)) if data is None else data
        except FileNotFoundError as error:
            raise FormatError(f"{place}: an entry of the log is missing; restore it") from error
        except StoreError as error:
            if not self._store.is_damage(error):
                raise
            raise FormatError(str(error)) from error  # a folder or a pipe in its place, for instance
        value = read_signed(data, place)
        if (said := value.get("number", number)) != number:
            raise StrayEntry(f"{place}: it is not an entry of this log, as it says number {said!r:.20}; remove it")
        try:
            entry = decode_record(TagEntry, value)
            for field, version in (("version", entry.version), ("previous", entry.previous)):
                if version is not None and not VERSION_PATTERN.match(version):
                    raise Mismatch(field, "16 hexadecimal digits")
        except Mismatch as error:
            raise FormatError(f"{place}: {message_of(error)}") from error
        return entry

    def read_all(self) -> tuple[list[TagEntry], dict[str, FormatError]]:
        """Return the entries that can be read, oldest first, and by path what is wrong with the log, gaps included.

        Raises StoreError if the store does not answer.
        """
        numbers = self.numbers()
        entries: list[TagEntry] = []
        problems: dict[str, FormatError] = {}
        last = 0
        for number, data in zip(numbers, self._store.read_all([self.path(number) for number in numbers]), strict=True):
            try:
                entries.append(self.read(number, data or None))
            except StrayEntry as error:
                problems[self.path(number)] = error
                continue
            except FormatError as error:
                problems[self.path(number)] = error
            if number > last + 1:
                more = f", and those up to {self.path(number - 1)}" if number > last + 2 else ""
                path = self.path(last + 1)
                message = f"{self._store.place(path)}: an entry of the log is missing{more}; restore it"
                problems[path] = FormatError(message)
            last = number
        return entries, problems

    def append(self, entry: TagEntry) -> TagEntry:
        """Create an entry, whose number the caller takes for the next one, and see that it counts; return it.

        Raises:
            FileExistsError: another process was first.
            FormatError: a file that is not an entry is in its place.
            StoreError: it can't be written, or is not there when it is read back.
        """
        path = self.path(entry.number)
        try:
            self._store.create(path, sign_record(entry))
        except FileExistsError:
            if self.newest_number() < entry.number:
                message = "it is in the place of the next entry, and is not an entry of this log; remove it"
                raise FormatError(f"{self._store.place(path)}: {message}") from None
            raise
        if self.newest_number() < entry.number:
            raise StoreError(
                f"{self._store.place(path)}: it was written, and is not there when the log is read back; "
                "check the store, and run the same command again"
            )
        return entry


def newest_number(store: Store, tag: str) -> int:
    """Return the number of the current entry of `tag`, 0 if there is none; raises FormatError if it is damaged."""
    return TagLog(store, tag).newest_number()


def newest(store: Store, tag: str) -> TagEntry | None:
    """Return the current entry, None if the tag is not set; raises FormatError if it is damaged."""
    return TagLog(store, tag).newest()


def log(store: Store, tag: str) -> list[TagEntry]:
    """Return all entries of `tag`, oldest first; raises FormatError if one is damaged or missing."""
    entries, problems = TagLog(store, tag).read_all()
    for problem in problems.values():
        if not isinstance(problem, StrayEntry):
            raise problem
    return entries


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
        FormatError, StoreError: as TagLog.append.
    """
    moves = TagLog(store, tag)
    previous = moves.read(seen_number).version if seen_number else None
    return moves.append(TagEntry(version, previous, now(), user(), reason, seen_number + 1))


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
        moved = TagLog(store, tag).read(seen_number + 1)
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
        FormatError: a file of the version is missing or cut short, or its spec is not one of a build.
        StoreError: the tag has moved since `seen` was read; if gc deleted the version meanwhile, VersionDeleted.
    """
    from tokenloom.storage.versions.version_spec import version_spec  # a reader moves no tag

    check_tag(tag)
    if not reason.strip() or not reason.isprintable():
        raise SpecError(f"the reason {reason!r} is not one line of text")
    if reason == BUILD_REASON:
        raise SpecError(f"the reason {reason!r} marks the moves of builds; write why you move the tag")
    limit = version_spec(store, manifest).limit
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
        other = TagLog(store, tag).read(seen.number + 1 if seen else 1)
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
