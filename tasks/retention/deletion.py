"""Delete a retired version: look again who uses it, claim it, then delete its manifest, then the rest.

docs/guides/versions.md states the protocol. A claim is an entry of the version's log. Files are deleted only while it
is young, as a build may write the same files again once it is old.
"""

from __future__ import annotations

import time

from tokenloom.errors import StoreError
from tokenloom.storage.formats.manifest import MANIFEST
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import version_path
from tokenloom.storage.versions.retirement import (
    CLAIM_SECONDS,
    DELETED,
    DELETING,
    RETIRED,
    change_state,
    newest_retirement,
)
from tokenloom.storage.work.assignment import BUILDS
from tokenloom.tasks.retention.survey import VersionStatus, users_of, version_files

_LAST_SECONDS = CLAIM_SECONDS / 2  # of a claim: others may continue after all of CLAIM_SECONDS
_NO_FILE = "none"  # no file of a version has this name
FILES_AT_ONCE = 1000  # deleted in one request, where the store can
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # also counts while the machine is suspended


class Used(Exception):
    """A version is used after all, or another process changed its state; the message says which."""


class _Claim:
    """The right to delete the files of a version; `check` must be called before each request that deletes."""

    def __init__(self, store: Store, version: str, seen_number: int) -> None:
        self._place = f"{store.root}@{version}"
        self._begin = time.clock_gettime(_CLOCK)  # before the entry exists
        self.number = change_unless_used(store, version, seen_number, DELETING, "gc")

    def check(self) -> None:
        """Raise StoreError if this process was too slow, so that others may take over."""
        age = time.clock_gettime(_CLOCK) - self._begin
        if age > _LAST_SECONDS:
            raise StoreError(
                f"{self._place}: this process has been deleting the version for {age:,.0f} s, or stood still; run gc "
                "again in an hour, which continues"
            )


def change_unless_used(store: Store, version: str, seen_number: int, state: str, reason: str) -> int:
    """Return the number of a new entry of a version's log; raises Used if it is not the next one any more."""
    try:
        return change_state(store, version, seen_number, state, reason).number
    except FileExistsError as error:
        raise Used("used again, or another gc changed it") from error


def delete_version(store: Store, status: VersionStatus, now: float) -> int:
    """Delete a version whose state is RETIRED or DELETING; return the number of bytes that it had.

    Args:
        store: the dataset's store.
        status: the version, as it was surveyed.
        now: the time by the store's clock, read before the survey.

    Raises:
        Used: it is tagged or leased now, or another process changed its state.
        FormatError: the newest entry of a tag is damaged.
        StoreError: the store can't be read or written.
    """
    store.remove(version_path(status.version, _NO_FILE))  # a link out of the store is refused before the claim
    _look_again(store, status, now)
    claim = _Claim(store, status.version, status.entry_number)
    files = version_files(store, status.version)
    claim.check()
    store.remove(version_path(status.version, MANIFEST))
    paths = list(files)
    for start in range(0, len(paths), FILES_AT_ONCE):
        claim.check()
        store.remove_files(paths[start : start + FILES_AT_ONCE])
    claim.check()
    for folder in (version_path(status.version), f"{BUILDS}/{status.version}"):
        store.remove_empty_folders(folder)
    change_unless_used(store, status.version, claim.number, DELETED, "gc")
    return sum(file.num_bytes for file in files.values())


def _look_again(store: Store, status: VersionStatus, now: float) -> None:
    entry = newest_retirement(store, status.version)
    if entry is None or entry.number != status.entry_number:
        raise Used("used again, or another gc changed it")
    if entry.state != RETIRED:  # DELETING: nobody may use it since that entry
        return
    users, tags_of = users_of(store, now)
    if status.version in users or status.version in tags_of:
        raise Used("used again")
