"""Fingerprints of input files, which name work files and versions: two files with one fingerprint have one content.

A local file's is a hash of the content. A remote file's is the hash that its store has of the content. A store without
one gives an ETag, which vouches only for its own URL: web servers make ETags of time and length, so that three files of
one length written in one second share theirs. Such an ETag is joined with the URL.

The fingerprint of a local file is remembered with its path and stamp, so an unchanged file is not read again. A file
that changed within the last two seconds is not remembered: a second change could leave the same times behind (git
calls such an entry racy).
"""

from __future__ import annotations

import base64
import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, cast

import xxhash

from tokenloom.errors import InputError, StoreError, WorkError
from tokenloom.storage.stores import is_object, remote_kind
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
    """Return the fingerprint of a remote file: the hash of its content, or its ETag with its URL; and its length.

    Args:
        info: fsspec's facts about the file.
        url: of the file.

    Raises InputError if the store gives neither a hash nor an ETag.
    """
    digest = _content_digest(info)
    if digest:
        return f"{digest}:{info['size']}"
    etag = str(info.get("ETag") or info.get("etag") or "").strip('"')
    checksum = info.get("crc32c")  # 32 bits: among 100,000 files, two with one checksum are likely
    if not etag and not checksum:
        raise InputError(
            f"{url}: its server gives neither a hash of the content nor an ETag; copy the file to a local folder"
        )
    if is_object(url) and remote_kind(url).name == "s3":  # the ETag is a hash of the content, or of its parts
        return f"etag:{etag}:{info['size']}"
    label = f"crc32c:{checksum}" if checksum else f"etag:{etag}"
    return f"{label}:{info['size']}:{hashlib.sha256(url.encode()).hexdigest()[:32]}"


def _content_digest(info: Mapping[str, object]) -> str | None:
    """Return the hash of a file's content that its store gives; None if it gives none."""
    lfs = cast(Mapping[str, str] | None, info.get("lfs"))  # of the Hugging Face Hub
    if lfs:
        return f"sha256:{lfs['sha256']}"
    if info.get("blob_id"):  # git's SHA-1 of a file of the Hub
        return f"blob_id:{info['blob_id']}"
    md5 = cast(bytes | None, getattr(info.get("content_settings"), "content_md5", None))  # of Azure's store
    if not md5:
        md5 = base64.b64decode(str(info.get("md5Hash") or ""))  # of Google's; composite objects have none
    return f"md5:{md5.hex()}" if md5 else None
