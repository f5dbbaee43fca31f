"""The kinds of remote stores, each a class with what it does in its own way: list, write, delete. S3's is in s3.py.

A file is written to a local temporary file first, then uploaded. The result is compared with the store's checksum (S3:
the ETag), and read back if the store gives none or another one, as it does for objects that it encrypts.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import logging
import os
import re
import stat
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from tokenloom.errors import StoreError
from tokenloom.storage.stores import local_files
from tokenloom.storage.stores.local_errors import translate_temporary_errors
from tokenloom.storage.stores.remote_errors import reason_of
from tokenloom.storage.stores.remote_retries import RemoteCalls, no_bucket
from tokenloom.storage.stores.store import MAX_TRANSFERS, STALE_SECONDS, TMP

Info = dict[str, Any]  # what fsspec says about a file: "name", "type", "size" and the store's own fields

_PREFIX = "tokenloom-up-"  # of temporary files in TMPDIR
_READ_BYTES = 4 * 2**20
_PART = re.compile(r"(\d+)\.[0-9a-f]{32}\.part\Z")  # the number is the time in seconds when it was begun
_MARK = "writer"  # in an object's metadata
_logger = logging.getLogger("tokenloom")


class FileSystemKind:
    """File systems of fsspec that are no object stores, such as sftp://; they show a file while it grows.

    So a file is sent to work/tmp and renamed. `create` checks first, then writes: safe for one writer at a time.

    Args:
        calls: the requests to the store.
    """

    requests_at_once = 1  # libraries with one connection send one at a time

    def __init__(self, calls: RemoteCalls) -> None:
        self.calls = calls

    def list_folder(self, place: str) -> list[Info]:
        """Return fsspec's info of each name in a folder; raises FileNotFoundError, StoreError."""
        return list(self.calls.call(place, "ls", place, detail=True, many=True))

    def list_below(self, place: str) -> list[Info]:
        """Return fsspec's info of all files in a folder and below; raises FileNotFoundError, StoreError."""
        return list(self.calls.call(place, "find", place, detail=True, many=True).values())

    def remove(self, place: str) -> None:
        """Delete a file if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self.calls.call(place, "rm_file", place, doing="written")

    def remove_files(self, places: Sequence[str]) -> None:
        """Delete files; those that do not exist are ignored."""
        with ThreadPoolExecutor(self.requests_at_once) as threads:
            list(threads.map(self.remove, places))

    def remove_empty_folders(self, place: str) -> None:
        """Delete a folder and those below it if none of them holds a file."""
        try:
            infos = self.calls.call(place, "find", place, withdirs=True, detail=True, many=True).values()
        except FileNotFoundError:
            return
        if any(info["type"] != "directory" for info in infos):
            return
        names = {place, *(f"{self.calls.scheme}://{info['name'].rpartition('://')[2]}" for info in infos)}
        for name in sorted(names, key=len, reverse=True):
            with contextlib.suppress(FileNotFoundError):
                self.calls.call(name, "rmdir", name, doing="written")

    def remove_stale_uploads(self) -> None:
        """Delete what unfinished uploads left in the store more than a day ago, if it can be listed."""
        try:
            self._remove_uploads(datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=STALE_SECONDS))
        except (StoreError, FileNotFoundError) as error:  # listing them needs a permission that a build does not
            _logger.info("%s: unfinished uploads can't be listed: %s", self.calls.url, reason_of(error))

    def _remove_uploads(self, before: datetime.datetime) -> None:
        folder = f"{self.calls.url}/{TMP}"
        for path in self.calls.call(folder, "ls", folder, detail=False, many=True):
            name = path.rpartition("/")[2]
            if (match := _PART.match(name)) and int(match[1]) < before.timestamp():
                self._remove_part(f"{folder}/{name}")

    def creates_exclusively(self) -> bool:
        """Return whether the store refuses to create a name twice; may leave a probe in its work/tmp."""
        return False

    def create(self, place: str, data: bytes) -> None:
        """Write a file that must not exist yet; raises FileExistsError, StoreError."""
        if self.calls.call(place, "exists", place):
            raise FileExistsError(place)
        with self.uploading(place) as file:
            local_files.write_all(file, data)

    @contextlib.contextmanager
    def uploading(self, place: str) -> Iterator[IO[bytes]]:
        """Open a temporary file in TMPDIR for writing and reading; upload it to `place` if the block succeeds.

        Raises StoreError if TMPDIR or the store cannot be written.
        """
        with translate_temporary_errors():
            file = tempfile.NamedTemporaryFile("w+b", prefix=_PREFIX, delete=False)  # noqa: SIM115  (entered below)
        try:
            with translate_temporary_errors(), file:
                yield file
            self._upload(place, file.name)
        except FileNotFoundError as error:
            if os.path.exists(file.name):
                raise
            raise StoreError(
                f"{file.name}: the temporary file was deleted during its upload to {place}; keep files in TMPDIR while "
                "a build runs, or set TMPDIR to another folder, and run the same command again"
            ) from error
        finally:
            Path(file.name).unlink(missing_ok=True)

    def _upload(self, place: str, path: str) -> None:
        """Write a local file to the store, which has all of it when this returns.

        Raises StoreError if it can't be written, or repeatedly arrives corrupted, FileNotFoundError if `path` is gone.
        """
        for _ in range(MAX_TRANSFERS):
            with translate_missing_bucket(self.calls.url, path):
                is_verified = self._put(place, path)
            if is_verified or self._has_arrived(place, path):
                return
            _logger.warning("%s: the store does not hold the bytes that were sent; sending them again", place)
        raise StoreError(
            f"{place}: arrived corrupted {MAX_TRANSFERS} times; check whether a proxy or the store changes uploads"
        )

    def _put(self, place: str, path: str) -> bool:
        """Send a local file; return whether the answer shows that it arrived as it was sent."""
        num_bytes = os.stat(path).st_size
        part = f"{self.calls.url}/{TMP}/{time.time():.0f}.{uuid.uuid4().hex}.part"
        for name in (part, place):
            self.calls.call(place, "makedirs", name.rpartition("/")[0], exist_ok=True, doing="written")
        try:
            self.calls.call(place, "put_file", path, part, doing="written", num_bytes=num_bytes)
            # Missing: an earlier try renamed it and its response was lost, or it was deleted. _upload looks.
            with contextlib.suppress(FileNotFoundError):
                self.calls.call(place, "mv", part, place, doing="written", num_bytes=num_bytes)  # some libraries copy
            return False
        except BaseException as error:  # noqa: BLE001  (raised below)
            failure = error
        self._remove_part(part)  # after the handler, so that its own errors do not name this one as their context
        raise failure

    def _remove_part(self, part: str) -> None:
        """Delete an unfinished file; `remove_stale_uploads` finds those that cannot be deleted now."""
        try:
            self.remove(part)
        except StoreError as error:
            _logger.warning("%s: it stays in the store for a day: %s", part, reason_of(error))

    def _has_arrived(self, place: str, path: str) -> bool:
        """Return whether the store holds the bytes of a local file: by length and MD5, else by reading them back."""
        try:
            info = self.calls.call(place, "info", place)
        except FileNotFoundError:
            return False
        if info["size"] != os.stat(path).st_size:
            return False
        with Path(path).open("rb") as file:
            if (stored := _stored_md5(info)) is None:
                return self._reads_back(place, file)
            return stored == hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).digest()

    def _reads_back(self, place: str, file: IO[bytes]) -> bool:
        start = 0
        while part := file.read(_READ_BYTES):
            if self.calls.read_range(place, start, start + len(part)) != part:
                return False
            start += len(part)
        return True


class ObjectStoreKind(FileSystemKind):
    """Google's store, and what object stores have in common: no folders, and an object is visible once it is complete.

    They delete unfinished uploads themselves.
    """

    requests_at_once = 16

    def remove_empty_folders(self, place: str) -> None:
        """Do nothing."""

    def _remove_uploads(self, before: datetime.datetime) -> None:
        """Do nothing."""

    def creates_exclusively(self) -> bool:
        """Return whether the store refuses to create a name twice; leaves a probe in its work/tmp."""
        try:
            for _ in range(2):  # the probe stays, so the next build needs one attempt
                self.create(f"{self.calls.url}/{TMP}/exclusive", uuid.uuid4().bytes)
        except FileExistsError:
            return True
        return False

    def create(self, place: str, data: bytes) -> None:
        """Write an object that must not exist yet; exactly one of several writers succeeds if the store supports it.

        This holds even if all writers send the same bytes. If a response is lost, the request is repeated, here or in a
        library below; a random mark in the object's metadata then shows whether this call wrote the object.

        Raises FileExistsError if the object exists, StoreError if it cannot be written.
        """
        mark = uuid.uuid4().hex
        options = {"mode": "create", "num_bytes": len(data), **self._with_metadata({_MARK: mark})}
        with translate_missing_bucket(self.calls.url):
            try:
                self.calls.call(place, "pipe_file", place, data, doing="written", **options)
                return
            except FileExistsError as error:
                exists = error
        with contextlib.suppress(FileNotFoundError):
            if self._metadata(place).get(_MARK) == mark:
                return
        raise exists

    def _with_metadata(self, metadata: dict[str, str]) -> dict[str, Any]:
        """Return the options of `pipe_file` that put metadata into an object."""
        return {"metadata": metadata}

    def _metadata(self, place: str) -> dict[str, str]:
        return dict(self.calls.call(place, "info", place).get("metadata") or {})

    def _put(self, place: str, path: str) -> bool:
        options = self._typed(content_type) if (content_type := content_type_of(place)) else {}
        self.calls.call(place, "put_file", path, place, doing="written", num_bytes=os.stat(path).st_size, **options)
        return False

    def _typed(self, content_type: str) -> dict[str, Any]:
        """Return the options of `put_file` that set an object's content type."""
        return {"content_type": content_type}


class AzureKind(ObjectStoreKind):
    """Microsoft's store."""

    def _with_metadata(self, metadata: dict[str, str]) -> dict[str, Any]:  # adlfs overwrites `metadata`
        return {"headers": {f"x-ms-meta-{name}": value for name, value in metadata.items()}}

    def _typed(self, content_type: str) -> dict[str, Any]:
        from azure.storage.blob import ContentSettings  # late: only the extra [azure] has it

        return {"content_settings": ContentSettings(content_type=content_type)}


def content_type_of(place: str) -> str | None:
    """Return a file's content type, without which a browser saves a page; None for the store's default."""
    return "text/html" if place.endswith(".html") else None


@contextlib.contextmanager
def translate_missing_bucket(url: str, path: str | None = None) -> Iterator[None]:
    """Raise a FileNotFoundError of a write to a store as "no such bucket", unless the local file `path` is missing."""
    try:
        yield
    except FileNotFoundError as error:
        if path is not None and not os.path.exists(path):
            raise
        raise no_bucket(url) from error


def _stored_md5(info: Info) -> bytes | None:
    """Return the MD5 that Google's or Azure's store has of an object, None if it has none."""
    if value := info.get("md5Hash"):
        return base64.b64decode(value)
    value = (info.get("content_settings") or {}).get("content_md5")
    return bytes(value) if value else None


def remove_stale_files() -> None:
    """Delete the temporary files that killed processes left in TMPDIR more than a day ago."""
    before = time.time() - STALE_SECONDS
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(FileNotFoundError, PermissionError):  # another user's
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) and found.st_mtime < before:
                path.unlink()
