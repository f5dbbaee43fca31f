"""The retirement of versions: for each a log of numbered entries, which outlives the version's files.

docs/guides/versions.md states the protocol, and why it loses nothing that is used. The state of a version is that of
its newest entry. Of a user and a collector who both want to create the next number, one succeeds.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from tokenloom.errors import FormatError, StoreError, VersionDeleted
from tokenloom.storage.formats.manifest import MANIFEST
from tokenloom.storage.formats.records import Mismatch
from tokenloom.storage.stores.store import Store, store_time
from tokenloom.storage.versions.numbered_entries import EntryLog, now, user

FOLDER = "retired"
#: the states of a version; one without a log is like KEPT
RETIRED, KEPT, DELETING, DELETED = "retired", "kept", "deleting", "deleted"
#: how long after its entry DELETING a version may still be touched by whoever wrote it, with a margin
CLAIM_SECONDS = 3600.0
_MAX_CHANGES = 100  # of a state by others while this process wants to change it
_STATES = (RETIRED, KEPT, DELETING, DELETED)


@dataclass(frozen=True, slots=True)
class RetirementEntry:
    """A change of a version's state, as its file records it.

    `at` is ISO 8601 in UTC, by the clock of the writer; `number` counts from 1.
    """

    state: str
    at: str
    by: str
    reason: str
    number: int


def retirement_log(store: Store, version: str) -> EntryLog[RetirementEntry]:
    """Return the log of a version's states."""
    return EntryLog(store, f"{FOLDER}/{version}", RetirementEntry, _check)


def _check(entry: RetirementEntry) -> None:
    if entry.state not in _STATES:
        raise Mismatch("state", f"one of {', '.join(_STATES)}, not {entry.state!r}")


def newest_retirement(store: Store, version: str) -> RetirementEntry | None:
    """Return the newest entry of a version's log, None if it was never retired; raises FormatError if it is damaged."""
    return retirement_log(store, version).newest()


def change_state(store: Store, version: str, seen_number: int, state: str, reason: str) -> RetirementEntry:
    """Create entry `seen_number` + 1 of a version's log, and read it back; errors as EntryLog.append.

    Args:
        store: the dataset's store.
        version: its name.
        seen_number: the number of the newest entry when the caller decided; 0 if there was none.
        state: the new state.
        reason: why, for people.
    """
    return retirement_log(store, version).append(RetirementEntry(state, now(), user(), reason, seen_number + 1))


def cancel_retirement(store: Store, version: str, reason: str, *, builds: bool = False) -> None:
    """Make sure that no collector deletes a version on which the caller holds a lease; un-retire it if need be.

    Args:
        store: the dataset's store.
        version: its name.
        reason: what the caller wants with it, for people.
        builds: the caller writes the files of the version, so it may have been deleted before.

    Raises:
        VersionDeleted: the version is deleted, or is being deleted.
        FormatError: its log is damaged.
    """
    for _ in range(_MAX_CHANGES):
        entry = newest_retirement(store, version)
        if entry is None or entry.state == KEPT:
            return
        if entry.state in (DELETING, DELETED) and not _may_use(store, version, entry, builds=builds):
            raise deleted_error(store, version, entry)
        try:
            change_state(store, version, entry.number, KEPT, reason)
        except FileExistsError:
            continue  # another process changed the state, so the next look finds a newer entry
        return
    raise StoreError(f"{store.root}@{version}: its state changes all the time; run the same command again")


def _may_use(store: Store, version: str, entry: RetirementEntry, *, builds: bool) -> bool:
    """Return whether nobody deletes files of a version any more, and the caller makes them or they are there again."""
    if entry.state == DELETED:
        return builds or store.exists(f"versions/{version}/{MANIFEST}")  # a person restored it from a copy
    if not builds:
        return False
    latest = store_time(store) - CLAIM_SECONDS  # an older claim is that of a collector that was killed
    written = store.modified(retirement_log(store, version).path(entry.number))
    return written is not None and written <= latest


def refuse_deleted(store: Store, version: str) -> None:
    """Raise VersionDeleted if a version is deleted or is being deleted, for readers that miss one of its files."""
    try:
        entry = newest_retirement(store, version)
    except (FormatError, StoreError):  # the reader's own error says more
        return
    if entry is not None and entry.state in (DELETING, DELETED):
        raise deleted_error(store, version, entry)


def deleted_error(store: Store, version: str, entry: RetirementEntry) -> VersionDeleted:
    """Return the error for a version whose newest entry is DELETING or DELETED."""
    if entry.state == DELETED:
        return VersionDeleted(
            f"{store.root}@{version}: `tokenloom gc` deleted this version at {entry.at} ({entry.by}); name another one "
            "(`tokenloom ls` lists them), or build again from the same inputs, which makes the same bytes"
        )
    return VersionDeleted(
        f"{store.root}@{version}: `tokenloom gc` has been deleting this version since {entry.at} ({entry.by}); name "
        "another one, or build it again once gc has ended; if gc was killed, an hour later"
    )


def warn_if_retired(store: Store, version: str) -> None:
    """Warn (UserWarning) if a version is retired, so that a later run of gc may delete it, or if its log is damaged."""
    try:
        entry = newest_retirement(store, version)
    except FormatError as error:  # the version itself can be read
        warnings.warn(f"it is unknown whether {store.root}@{version} is retired: {error}", stacklevel=4)
        return
    if entry is None or entry.state in (KEPT, DELETED):  # the manifest of a deleted one is there: it was restored
        return
    retired = (
        f"{store.root}@{version}: `tokenloom gc` retired this version at {entry.at}, and will delete it; to keep it, "
        "tag it, or read it with TokenDataset(..., lease=True)"
    )
    warnings.warn(retired if entry.state == RETIRED else str(deleted_error(store, version, entry)), stacklevel=4)
