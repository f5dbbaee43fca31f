"""Survey a dataset: its versions and unfinished candidates, and who uses them."""

from __future__ import annotations

from dataclasses import dataclass

from tokenloom.storage.formats.manifest import MANIFEST
from tokenloom.storage.formats.names import VERSION_PATTERN
from tokenloom.storage.stores.store import Store, StoredFile
from tokenloom.storage.versions import retirement, tags
from tokenloom.storage.versions.leases import HeldLease, held_leases
from tokenloom.storage.versions.published import version_path
from tokenloom.storage.versions.retirement import RetirementEntry, newest_retirement, retirement_log
from tokenloom.storage.work.assignment import BUILDS


@dataclass(frozen=True)
class VersionStatus:
    """A version, or a candidate that is not published. Times are seconds since 1970, by the store's clock.

    `published` is when its manifest was written, None for a candidate; `touched` when the newest file of a candidate
    was written. `users` describes the leases on it. `entry` is the newest of its log of retirement, written at
    `entry_time`; both are None if it has no log.
    """

    version: str
    published: float | None
    touched: float
    tags: tuple[str, ...]
    users: tuple[str, ...]
    entry: RetirementEntry | None
    entry_time: float | None

    @property
    def state(self) -> str:
        """The state of its retirement; KEPT without a log."""
        return self.entry.state if self.entry else retirement.KEPT

    @property
    def entry_number(self) -> int:
        """The number of the newest entry of its log, 0 without a log."""
        return self.entry.number if self.entry else 0


def survey(store: Store, now: float) -> list[VersionStatus]:
    """Return the versions of a dataset that have files, sorted by name.

    Args:
        store: the dataset's store.
        now: the time by the store's clock, read before.

    Raises:
        FormatError: the newest entry of a tag, or of a version's log, is damaged.
        StoreError: the store can't be read.
    """
    users, tags_of = users_of(store, now)
    names = {*store.names("versions"), *store.names(BUILDS)}
    found = (
        _status(store, version, tuple(tags_of.get(version, ())), tuple(users.get(version, ())))
        for version in sorted(filter(VERSION_PATTERN.match, names))
    )
    return [status for status in found if status is not None]


def users_of(store: Store, now: float) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return who holds leases on each version, and the tags that name it.

    The leases are read before the tags: a move of a tag holds a lease until its entry is visible.
    """
    users: dict[str, list[str]] = {}
    for lease in held_leases(store, now):
        users.setdefault(lease.version, []).append(_described(lease))
    return users, tags.tagged_versions(store)


def _described(lease: HeldLease) -> str:
    return f"{lease.purpose} of {lease.by}"


def _status(store: Store, version: str, tags_of: tuple[str, ...], users: tuple[str, ...]) -> VersionStatus | None:
    """Return None if the version has no files: another collector has just deleted it."""
    entry = newest_retirement(store, version)
    published = store.modified(version_path(version, MANIFEST))
    touched = _touched(store, version) if published is None else published
    if touched is None:
        return None
    return VersionStatus(
        version=version,
        published=published,
        touched=touched,
        tags=tags_of,
        users=users,
        entry=entry,
        entry_time=store.modified(retirement_log(store, version).path(entry.number)) if entry else None,
    )


def _touched(store: Store, version: str) -> float | None:
    return max((file.modified for file in version_files(store, version).values()), default=None)


def version_files(store: Store, version: str) -> dict[str, StoredFile]:
    """Return all files that belong to a version, by path: its own, and the records of its build."""
    return store.files_below(version_path(version)) | store.files_below(f"{BUILDS}/{version}")
