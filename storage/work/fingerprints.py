"""Fingerprints of input files: of the content for local files, of the etag or generation on object stores.

The fingerprint of a local file is remembered with its path and stamp, so an unchanged file is not read again. A file
that changed within the last two seconds is not remembered: a second change could leave the same times behind (git
calls such an entry racy).
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import xxhash

from tokenloom.errors import InputError, StoreError, WorkError
from tokenloom.storage.stores.local_files import open_regular
from tokenloom.storage.stores.store import Store
from tokenloom.storage.work.records import find_work_records, write_work_record

PATH = "work/fingerprints.json"
_RACY_NS = 2_000_000_000


class Stamp(NamedTuple):
    """The status of a local file, which changes when the file changes."""

    num_bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int


class Remembered(NamedTuple):
    """The fingerprint of a local file while it had a stamp."""

    stamp: Stamp
    fingerprint: str


@dataclass(frozen=True, slots=True)
class FingerprintRecord:
    """The remembered fingerprints of local files, by path."""

    files: dict[str, Remembered]


def stamp(path: str) -> Stamp:
    """Return the stamp of a local file; raises InputError if there is none."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}; check the file") from error
    return Stamp(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


class FingerprintMemory:
    """Fingerprints of local files, remembered in the store between builds.

    Args:
        store: the dataset's store; a missing or damaged memory is empty.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changed = False
        found = find_work_records(store, [PATH], FingerprintRecord)
        self._known = found[PATH].files if found else {}

    def local(self, path: str) -> tuple[str, Stamp]:
        """Return the fingerprint of a local file, "xxh3_128:" and 32 hexadecimal digits, and its stamp.

        Raises InputError if it can't be read, or changes while it is read.
        """
        before = stamp(path)
        known = self._known.get(path)
        if known and known.stamp == before:
            return known.fingerprint, before
        try:
            with open_regular(path) as file:
                fingerprint = f"xxh3_128:{hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()}"
        except OSError as error:
            raise InputError(f"{path}: can't be read: {error.strerror}; check the file") from error
        if stamp(path) != before:
            raise InputError(f"{path}: it changed while it was read; build again when it is complete")
        if time.time_ns() - max(before.mtime_ns, before.ctime_ns) > _RACY_NS:
            self._known[path] = Remembered(before, fingerprint)
            self._changed = True
        return fingerprint, before

    def save(self) -> None:
        """Write new fingerprints into the store, if there are any."""
        if self._changed:
            with suppress(StoreError, WorkError):  # a cache: without it the next build reads the files again
                write_work_record(self._store, PATH, FingerprintRecord(self._known))


def joined_fingerprint(fingerprints: Sequence[str]) -> str:
    """Return the fingerprint of a file and those that are read with it; of a file alone, its own."""
    return " + ".join(fingerprints)


def remote_fingerprint(info: Mapping[str, object], url: str) -> str:
    """Return the fingerprint of an object from its fsspec `info`: etag or generation, and length.

    Raises InputError if the store gives neither.
    """
    for field in ("ETag", "etag", "generation", "content_md5"):
        if info.get(field):
            return f"{field.lower()}:{str(info[field]).strip(chr(34))}:{info['size']}"
    raise InputError(
        f"{url}: this kind of store gives neither an etag nor a generation; copy the file to a local folder"
    )
