"""Fingerprints of input files: by content for local files, by etag or generation on object stores.

A local file's fingerprint is remembered by (path, length, mtime_ns, ctime_ns, inode), so an unchanged file is
not read again. One that changed within the last two seconds is not remembered: a second change could leave the
same times behind (git calls such an entry racy).
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import IO, Any

import xxhash

from tokenloom.errors import InputError, StoreError, WorkError
from tokenloom.storage.formats.canonical import read_signed, sign
from tokenloom.storage.stores.store import Store

PATH = "work/fingerprints.json"
_CHUNK_BYTES = 2**22
_RACY_NS = 2_000_000_000


def stamp(path: str) -> list[int]:
    """Return what changes when a local file does: [length in bytes, mtime_ns, ctime_ns, inode].

    Raises InputError if there is no such file.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}; check the file") from error
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


class FingerprintMemory:
    """Fingerprints of local files, remembered in the store between builds.

    Args:
        store: the dataset's store; a missing or damaged memory is an empty one.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changed = False
        try:
            self._known: dict[str, Any] = read_signed(store.read(PATH), PATH)["files"]
        except (FileNotFoundError, ValueError):
            self._known = {}

    def local(self, path: str) -> tuple[str, list[int]]:
        """Return the fingerprint of a local file, "xxh3_128:" and 32 hexadecimal digits, and its stamp.

        Raises InputError if it can't be read, or changes while it is.
        """
        before = stamp(path)
        entry = self._known.get(path)
        if entry and entry[0] == before:
            return str(entry[1]), before
        fingerprint = f"xxh3_128:{_hash_file(path)}"
        if stamp(path) != before:
            raise InputError(f"{path}: it changed while it was read; build again when it is complete")
        if time.time_ns() - max(before[1], before[2]) > _RACY_NS:
            self._known[path] = [before, fingerprint]
            self._changed = True
        return fingerprint, before

    def save(self) -> None:
        """Write what was learnt into the store, if anything was."""
        if self._changed:
            with suppress(StoreError, WorkError):  # only a cache: the next build reads the files again
                self._store.replace(PATH, sign({"files": self._known}), durable=False)


def remote_fingerprint(info: dict[str, Any], url: str) -> str:
    """Return the fingerprint of an object from its fsspec `info`: etag or generation, and length.

    Raises InputError if the store tells neither.
    """
    for field in ("ETag", "etag", "generation", "content_md5"):
        if info.get(field):
            return f"{field.lower()}:{str(info[field]).strip(chr(34))}:{info['size']}"
    raise InputError(f"{url}: this kind of store tells neither etag nor generation; copy the file to a local folder")


def _hash_file(path: str) -> str:
    try:
        with open(path, "rb") as file:  # noqa: PTH123  (a str path, as fsspec gives it)
            return _digest(file)
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}; check the file") from error


def _digest(file: IO[bytes]) -> str:
    hasher = xxhash.xxh3_128()
    while chunk := file.read(_CHUNK_BYTES):
        hasher.update(chunk)
    return hasher.hexdigest()
