"""The retirement of versions: for each a log of numbered entries, which outlives the version's files.

docs/retention.md states the protocol, and why it loses nothing that is used. The state of a version is that of its
newest entry. Of a user and a collector who both want to create the next number, one succeeds.
"""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass

from tokenloom.errors import FormatError, StoreError, VersionDeleted
from tokenloom.storage.formats.canonical import read_signed_record, sign_record
from tokenloom.storage.formats.manifest import NAME
from tokenloom.storage.stores.store import Store
from tokenloom.storage.stores.store_clock import store_time
from tokenloom.storage.versions.numbered_entries import entry_name, entry_numbers, now, user

FOLDER = "retired"
#: the states of a version; one without a log is like KEPT
RETIRED, KEPT, DELETING, DELETED = "retired", "kept", "deleting", "deleted"
#: how long after its entry DELETING a version may still be touched by whoever wrote it, with a margin
CLAIM_SECONDS = 3600.0
_STATES = (RETIRED, KEPT, DELETING, DELETED)


@dataclass(frozen=True, slots=True)
class RetirementRecord:
    """A change of a version's state, as its file records it; `at` is ISO 8601 in UTC, by the clock of the writer."""

    state: str
    at: str
    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class RetirementEntry(RetirementRecord):
    """A change of a version's state; `number` counts from 1."""

    number: int


def retirement_path(version: str, number: int) -> str:
    """Return the path of entry `number` of a version's log, relative to the dataset's folder."""
    return f"{FOLDER}/{version}/{entry_name(number)}"


def newest_retirement(store: Store, version: str) -> RetirementEntry | None:
    """Return the newest entry of a version's log, None if it was never retired; raises FormatError if it is damaged."""
    number = max(entry_numbers(store.names(f"{FOLDER}/{version}")), default=0)
    if not number:
        return None
    path = retirement_path(version, number)
    try:
        record = read_signed_record(store.read(path), store.place(path), RetirementRecord)
    except FileNotFoundError as error:
        raise FormatError(f"{store.place(path)}: an entry of the version's log is missing; restore it") from error
    if record.state not in _STATES:
        raise FormatError(f"{store.place(path)}: state must be one of {', '.join(_STATES)}, not {record.state!r}")
    return RetirementEntry(**asdict(record), number=number)


def change_state(store: Store, version: str, seen_number: int, state: str, reason: str) -> RetirementEntry:
    """Create entry `seen_number` + 1 of a version's log; raises FileExistsError if another was first.

    Args:
        store: the dataset's store.
        version: its name.
        seen_number: the number of the newest entry when the caller decided; 0 if there was none.
        state: the new state.
        reason: why, for people.
    """
    record = RetirementRecord(state, now(), user(), reason)
    store.create(retirement_path(version, seen_number + 1), sign_record(record))
    return RetirementEntry(**asdict(record), number=seen_number + 1)


def keep(store: Store, version: str, reason: str, *, builds: bool = False) -> None:
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
    while True:
        entry = newest_retirement(store, version)
        if entry is None or entry.state == KEPT:
            return
        if entry.state in (DELETING, DELETED) and not _may_use(store, version, entry, builds=builds):
            raise deleted_error(store, version, entry)
        try:
            change_state(store, version, entry.number, KEPT, reason)
        except FileExistsError:
            continue
        return


def _may_use(store: Store, version: str, entry: RetirementEntry, *, builds: bool) -> bool:
    """Return whether nobody deletes files of a version any more, and the caller makes them or they are there again."""
    if entry.state == DELETED:
        return builds or store.exists(f"versions/{version}/{NAME}")  # a person restored it from a copy
    if not builds:
        return False
    latest = store_time(store) - CLAIM_SECONDS  # an older claim is that of a collector that was killed
    written = store.modified(retirement_path(version, entry.number))
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
