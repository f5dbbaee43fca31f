"""Uploads to a remote store: from a local temporary file, verified against the store's checksum.

S3 gets its parts by requests of our own (s3.py); the libraries of other stores split files themselves. The result is
compared with the store's checksum (S3: the ETag), and read back if the store gives none or another one, as it does
for objects that it encrypts.
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
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from tokenloom.errors import StoreError
from tokenloom.storage.stores import s3
from tokenloom.storage.stores.local_errors import translate_temporary_errors
from tokenloom.storage.stores.remote_errors import reason_of
from tokenloom.storage.stores.remote_retries import RemoteCalls, no_bucket
from tokenloom.storage.stores.store import TMP
from tokenloom.storage.stores.urls import AZURE, OBJECT_STORES, S3

_PREFIX = "tokenloom-up-"  # of temporary files in TMPDIR
_MAX_UPLOADS = 3  # of one file that arrives corrupted
_STALE = datetime.timedelta(days=1)
_READ_BYTES = 4 * 2**20
_HTML = "text/html"  # without it a browser saves a page and does not show it
_PART = re.compile(r"(\d+)\.[0-9a-f]{32}\.part\Z")  # the number is the time in seconds when it was begun
_logger = logging.getLogger("tokenloom")


@contextlib.contextmanager
def uploading(calls: RemoteCalls, place: str) -> Iterator[IO[bytes]]:
    """Open a temporary file in TMPDIR for writing and reading; upload it to `place` if the block succeeds.

    Raises StoreError if TMPDIR or the store cannot be written.
    """
    with translate_temporary_errors():
        file = tempfile.NamedTemporaryFile("w+b", prefix=_PREFIX, delete=False)  # noqa: SIM115  (entered below)
    try:
        with translate_temporary_errors(), file:
            yield file
        _upload(calls, place, file.name)
    except FileNotFoundError as error:
        if os.path.exists(file.name):
            raise
        raise StoreError(
            f"{file.name}: the temporary file was deleted during its upload to {place}; keep files in TMPDIR while a "
            "build runs, or set TMPDIR to another folder, and run the same command again"
        ) from error
    finally:
        Path(file.name).unlink(missing_ok=True)


def _upload(calls: RemoteCalls, place: str, path: str) -> None:
    """Write a local file to a store; the store has all of it when this returns.

    Raises StoreError if it cannot be written, or repeatedly arrives corrupted, FileNotFoundError if `path` is missing.
    """
    for _ in range(_MAX_UPLOADS):
        with translate_missing_bucket(place, path):
            etag = _put(calls, place, path)
        if etag and etag == s3.etag(path):
            return
        if _has_arrived(calls, place, path):
            return
        _logger.warning("%s: the store does not hold the bytes that were sent; sending them again", place)
    raise StoreError(
        f"{place}: arrived corrupted {_MAX_UPLOADS} times; check whether a proxy or the store changes uploads"
    )


@contextlib.contextmanager
def translate_missing_bucket(place: str, path: str | None = None) -> Iterator[None]:
    """Raise a FileNotFoundError of a write as "no such bucket", unless the local file `path` is missing."""
    try:
        yield
    except FileNotFoundError as error:
        if path is not None and not os.path.exists(path):
            raise
        raise no_bucket(place) from error


def _put(calls: RemoteCalls, place: str, path: str) -> str:
    """Send a file to the store; return the ETag that S3 gives it, "" if unknown."""
    content_type = _HTML if place.endswith(".html") else None
    if calls.scheme in S3:
        return s3.put_file(calls, place, path, content_type)
    num_bytes = os.stat(path).st_size
    if calls.scheme in OBJECT_STORES:
        options = _typed(calls.scheme, content_type) if content_type else {}
        calls.call(place, "put_file", path, place, doing="written", num_bytes=num_bytes, **options)
    else:
        _put_and_rename(calls, place, path, num_bytes)
    return ""


def _typed(scheme: str, content_type: str) -> dict[str, Any]:
    """Return the options of an upload to Google's or Azure's store that set an object's content type."""
    if scheme in AZURE:
        from azure.storage.blob import ContentSettings  # late: only the extra [azure] has it

        return {"content_settings": ContentSettings(content_type=content_type)}
    return {"content_type": content_type}


def _put_and_rename(calls: RemoteCalls, place: str, path: str, num_bytes: int) -> None:
    """Send a file to work/tmp, then rename it: stores other than object stores show a file while it grows."""
    part = f"{calls.url}/{TMP}/{time.time():.0f}.{uuid.uuid4().hex}.part"
    for name in (part, place):
        calls.call(place, "makedirs", name.rpartition("/")[0], exist_ok=True, doing="written")
    try:
        calls.call(place, "put_file", path, part, doing="written", num_bytes=num_bytes)
        # Missing: an earlier try renamed it and its response was lost, or it was deleted. _upload checks the result.
        with contextlib.suppress(FileNotFoundError):
            calls.call(place, "mv", part, place, doing="written", num_bytes=num_bytes)  # some libraries copy
        return
    except BaseException as error:  # noqa: BLE001  (raised below)
        failure = error
    _remove_part(calls, part)  # after the handler, so that its own errors do not name this one as their context
    raise failure


def _remove_part(calls: RemoteCalls, part: str) -> None:
    """Delete an unfinished file; `remove_stale_uploads` finds those that cannot be deleted now."""
    try:
        calls.call(part, "rm_file", part, doing="written")
    except FileNotFoundError:
        return
    except StoreError as error:
        _logger.warning("%s: it stays in the store for a day: %s", part, reason_of(error))


def _has_arrived(calls: RemoteCalls, place: str, path: str) -> bool:
    """Return whether the store holds the bytes of a local file: by length and MD5, else by reading them back."""
    try:
        info = calls.call(place, "info", place)
    except FileNotFoundError:
        return False
    if info["size"] != os.stat(path).st_size:
        return False
    with Path(path).open("rb") as file:
        if (stored := _stored_md5(info)) is None:
            return _reads_back(calls, place, file)
        return stored == hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).digest()


def _stored_md5(info: dict[str, Any]) -> bytes | None:
    """Return the MD5 that Google's or Azure's store has of an object, None if it has none."""
    if value := info.get("md5Hash"):
        return base64.b64decode(value)
    value = (info.get("content_settings") or {}).get("content_md5")
    return bytes(value) if value else None


def _reads_back(calls: RemoteCalls, place: str, file: IO[bytes]) -> bool:
    start = 0
    while part := file.read(_READ_BYTES):
        if calls.read_range(place, start, start + len(part)) != part:
            return False
        start += len(part)
    return True


def remove_stale_files() -> None:
    """Delete the temporary files that killed processes left in TMPDIR more than a day ago."""
    before = time.time() - _STALE.total_seconds()
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(FileNotFoundError, PermissionError):  # another user's
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) and found.st_mtime < before:
                path.unlink()


def remove_stale_uploads(calls: RemoteCalls) -> None:
    """Delete what unfinished uploads into the store left more than a day ago.

    These are parts in S3, and files in work/tmp of stores other than object stores; Google's and Azure's stores delete
    unfinished uploads themselves.
    """
    before = datetime.datetime.now(datetime.UTC) - _STALE
    try:
        if calls.scheme in S3:
            s3.abort_stale_uploads(calls, before)
        elif calls.scheme not in OBJECT_STORES:
            _remove_stale_parts(calls, f"{calls.url}/{TMP}", before)
    except (StoreError, FileNotFoundError) as error:  # listing them needs a permission that a build does not
        _logger.info("%s: unfinished uploads can't be listed: %s", calls.url, reason_of(error))


def _remove_stale_parts(calls: RemoteCalls, folder: str, before: datetime.datetime) -> None:
    for path in calls.call(folder, "ls", folder, detail=False, many=True):
        name = path.rpartition("/")[2]
        if (match := _PART.match(name)) and int(match[1]) < before.timestamp():
            _remove_part(calls, f"{folder}/{name}")
