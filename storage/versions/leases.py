"""Leases: files that say that somebody uses a version until a time, so that no collector deletes it.

docs/guides/versions.md states the protocol. A lease is written first; only then its holder looks whether the version
is retired. It ends `seconds` after it was written, by the store's clock, so that of a killed process ends too. To renew
it, another file is written before the old one is deleted: whoever deletes leases that have ended can't delete a renewed
one.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
import uuid
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from tokenloom.errors import FormatError, StoreError, TokenloomError
from tokenloom.storage.formats.canonical import read_signed_record, sign_record
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.numbered_entries import now, user
from tokenloom.storage.versions.retirement import cancel_retirement

FOLDER = "leases"
#: the longest lease, and how long one counts whose file is damaged
MAX_SECONDS = 7 * 24 * 3600.0
BUILD, READER, TAG = "build", "reader", "tag"
BUILD_SECONDS, READER_SECONDS, TAG_SECONDS = 3600.0, 24 * 3600.0, 600.0
_RENEWALS = 48  # of a reader's lease, in its time: a try every half hour leaves many
_BUILD_RENEWALS = 6
_NAME = re.compile(r"([0-9a-f]{16})\.[0-9a-f]{32}\.json\Z")
_logger = logging.getLogger("tokenloom")


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """A lease, as its file records it; it ends `seconds` after the file was written. The rest is for people."""

    seconds: float
    purpose: str
    at: str
    by: str
    host: str


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A lease in a store: its file, its version, what it is for, and when it ends by the store's clock."""

    path: str
    version: str
    purpose: str
    by: str
    end: float


class Lease:
    """A lease that this process holds on a version, until it is released or the object is gone.

    A copy in a forked or unpickling process shares it, and writes leases of its own when they are due.

    Args:
        store: the dataset's store.
        version: its name.
        purpose: BUILD, READER or TAG.
        seconds: how long it lasts if it is not renewed, at most MAX_SECONDS.

    Raises:
        StoreError: the store can't be written.
        VersionDeleted: the version is deleted, or is being deleted.
        FormatError: the log of the version's retirement is damaged.
    """

    def __init__(self, store: Store, version: str, purpose: str, seconds: float) -> None:
        self.store, self.version, self.purpose, self.seconds = store, version, purpose, seconds
        self.renew_seconds = seconds / (_BUILD_RENEWALS if purpose == BUILD else _RENEWALS)
        self._start()
        self.renew()

    def _start(self) -> None:
        self._files = _OwnFiles(self.store)
        self._due = time.monotonic() + self.renew_seconds
        self._end = weakref.finalize(self, self._files.remove)

    def renew(self) -> None:
        """Write a lease anew, look whether the version is retired, and delete the lease before; errors as the class."""
        self._due = time.monotonic() + self.renew_seconds
        if not self._files.is_mine:  # a forked child
            self._start()
        path = f"{FOLDER}/{self.version}.{uuid.uuid4().hex}.json"
        record = LeaseRecord(self.seconds, self.purpose, now(), user(), os.uname().nodename)
        self.store.replace(path, sign_record(record), durable=False)
        before = self._files.paths[:]
        self._files.paths.append(path)
        try:
            cancel_retirement(self.store, self.version, f"used by a {self.purpose}", builds=self.purpose == BUILD)
        except BaseException:
            self._files.remove([path])
            raise
        self._files.remove(before)

    def renew_if_due(self) -> None:
        """Renew the lease if a part of its time has passed; log a failure, and retry at the next due time."""
        if time.monotonic() < self._due:
            return
        try:
            self.renew()
        except (TokenloomError, OSError) as error:
            _logger.warning("%s@%s: the lease can't be renewed: %s", self.store.root, self.version, error)

    def release(self) -> None:
        """Delete the lease; of a copy in another process, nothing."""
        self._end()

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_files", "_end", "_due")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__ |= state
        self._start()


class _OwnFiles:
    """The lease files that this process wrote and has not deleted."""

    def __init__(self, store: Store) -> None:
        self._store, self._process = store, os.getpid()
        self.paths: list[str] = []

    @property
    def is_mine(self) -> bool:
        return self._process == os.getpid()

    def remove(self, paths: list[str] | None = None) -> None:
        """Delete some of the files, all by default; those that can't be deleted end by themselves."""
        for path in self.paths[:] if paths is None else paths:
            if self.is_mine and path in self.paths:
                self.paths.remove(path)
                with suppress(StoreError, OSError):
                    self._store.remove(path)


@contextmanager
def leasing(store: Store, version: str, purpose: str, seconds: float) -> Iterator[Lease]:
    """Hold a lease during the block; errors as Lease."""
    lease = Lease(store, version, purpose, seconds)
    try:
        yield lease
    finally:
        lease.release()


@contextmanager
def building(store: Store, version: str) -> Iterator[Lease]:
    """Hold the lease of a build during the block, which a thread renews; errors as Lease."""
    with leasing(store, version, BUILD, BUILD_SECONDS) as lease:
        ended = threading.Event()
        thread = threading.Thread(target=_renew_until, args=(lease, ended), name="tokenloom-lease", daemon=True)
        thread.start()
        try:
            yield lease
        finally:
            ended.set()
            thread.join()


def _renew_until(lease: Lease, ended: threading.Event) -> None:
    while not ended.wait(lease.renew_seconds):
        lease.renew_if_due()


def held_leases(store: Store, now: float) -> list[HeldLease]:
    """Return the leases of a dataset that have not ended.

    Args:
        store: the dataset's store.
        now: the time by the store's clock, read before.
    """
    return [lease for lease in all_leases(store) if lease.end > now]


def all_leases(store: Store) -> list[HeldLease]:
    """Return all leases of a dataset, also those that have ended. A damaged one lasts MAX_SECONDS."""
    files = {path: file for path, file in store.files_below(FOLDER).items() if _NAME.search(path)}
    found = []
    for (path, file), data in zip(files.items(), store.read_all(list(files)), strict=True):
        if data is None:
            continue  # its holder has just released or renewed it
        try:
            record = read_signed_record(data, path, LeaseRecord)
        except FormatError:
            record = LeaseRecord(MAX_SECONDS, f"damaged lease {path}", "", "unknown", "")
        version = path.removeprefix(f"{FOLDER}/").partition(".")[0]
        end = file.modified + min(record.seconds, MAX_SECONDS)
        found.append(HeldLease(path, version, record.purpose, record.by, end))
    return found
