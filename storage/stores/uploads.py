"""Uploads to a remote store: in parts, from a local file, checked against the store's own checksum.

To S3 each part is a request of its own, so a lost one costs one part; other stores' libraries cut by themselves. What
came up is compared with the store's checksum of it (S3: the ETag, an MD5 of the MD5s of the parts), and read back
where a store gives none, or another one, as with objects that it encrypts.
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tokenloom.errors import StoreError
from tokenloom.storage.stores.local import TMP
from tokenloom.storage.stores.remote_calls import RemoteCalls, no_bucket
from tokenloom.storage.stores.remote_errors import reason_of
from tokenloom.storage.stores.url_protocols import OBJECT_STORES, S3

PART_BYTES = 32 * 2**20
PREFIX = "tokenloom-up-"  # of local files on their way
_MAX_PARTS = 10_000  # of S3
_AT_ONCE = 4  # parts on their way
_MAX_UPLOADS = 3  # of one file that arrives wrong
_STALE = datetime.timedelta(days=1)
_READ_BYTES = 4 * 2**20
_PART = re.compile(r"(\d+)\.[0-9a-f]{32}\.part\Z")  # begun at that second
_logger = logging.getLogger("tokenloom")


def upload(calls: RemoteCalls, place: str, path: str) -> None:
    """Write a local file to a store, over one that may be there; it is there in full when this returns.

    Args:
        calls: of the store.
        place: the URL to write.
        path: of the local file, which must not change.

    Raises StoreError if it can't be written, or arrives wrong again and again.
    """
    num_bytes = os.stat(path).st_size
    part_bytes = max(PART_BYTES, -(-num_bytes // _MAX_PARTS))
    for _ in range(_MAX_UPLOADS):
        with naming_bucket(place):
            etag = _put(calls, place, path, num_bytes, part_bytes)
        if etag and etag == _etag(path, num_bytes, part_bytes):
            return
        if _is_there(calls, place, path, num_bytes):
            return
        _logger.warning("%s: what the store holds is not what was sent; it is sent again", place)
    raise StoreError(f"{place}: arrived wrong {_MAX_UPLOADS} times; see whether something between changes what is sent")


@contextlib.contextmanager
def naming_bucket(place: str) -> Iterator[None]:
    """Say what is missing if the store says of a write that something is."""
    try:
        yield
    except FileNotFoundError as error:
        raise no_bucket(place) from error


def _put(calls: RemoteCalls, place: str, path: str, num_bytes: int, part_bytes: int) -> str:
    if calls.protocol in S3:
        return _put_s3(calls, place, path, num_bytes, part_bytes)
    if calls.protocol in OBJECT_STORES:
        calls.call(place, "put_file", path, place, doing="written", num_bytes=num_bytes)
    else:
        _put_and_rename(calls, place, path, num_bytes)
    return ""


def _put_and_rename(calls: RemoteCalls, place: str, path: str, num_bytes: int) -> None:
    """Send a file to work/tmp first: stores that are no object stores show it while it grows."""
    part = f"{calls.url}/{TMP}/{time.time():.0f}.{uuid.uuid4().hex}.part"
    for name in (part, place):
        calls.call(place, "makedirs", name.rpartition("/")[0], exist_ok=True, doing="written")
    try:
        calls.call(place, "put_file", path, part, doing="written", num_bytes=num_bytes)
        with contextlib.suppress(FileNotFoundError):  # moved by a try whose answer was lost, or deleted: upload looks
            calls.call(place, "mv", part, place, doing="written", num_bytes=num_bytes)  # some libraries copy
        return
    except BaseException as error:  # noqa: BLE001  (raised below)
        failure = error
    _remove_part(calls, part)  # out of the handler: what fails here is not raised from that
    raise failure


def _remove_part(calls: RemoteCalls, part: str) -> None:
    """Delete what came of a file; what can't be deleted now, remove_stale_uploads finds."""
    try:
        calls.call(part, "rm_file", part, doing="written")
    except FileNotFoundError:
        return
    except StoreError as error:
        _logger.warning("%s: it stays in the store for a day: %s", part, reason_of(error))


def _put_s3(calls: RemoteCalls, place: str, path: str, num_bytes: int, part_bytes: int) -> str:
    """Send a file to S3; return the ETag that it gives, "" if its last answer was lost."""
    bucket, _, key = place.partition("://")[2].partition("/")
    target = {"Bucket": bucket, "Key": key}
    if num_bytes <= part_bytes:
        answer = _call_s3(calls, place, "put_object", **target, Body=Path(path).read_bytes())
        return str(answer["ETag"]).strip('"')
    target["UploadId"] = _call_s3(calls, place, "create_multipart_upload", **target)["UploadId"]
    try:
        parts = _put_parts(calls, place, path, num_bytes, part_bytes, target)
        return _complete(calls, place, target, parts)
    except FileNotFoundError as error:
        raise StoreError(
            f"{place}: the store forgot the upload before all parts were there; see whether a rule of the bucket ends "
            "unfinished uploads that soon"
        ) from error
    except BaseException as error:  # noqa: BLE001  (raised below)
        failure = error
    _abort(calls, place, target)  # out of the handler: what fails here is not raised from that
    raise failure


def _complete(calls: RemoteCalls, place: str, target: dict[str, str], parts: list[dict[str, Any]]) -> str:
    try:
        answer = _call_s3(calls, place, "complete_multipart_upload", **target, MultipartUpload={"Parts": parts})
    except FileNotFoundError:  # no such upload: a try before this one ended it, and its answer was lost
        return ""
    return str(answer["ETag"]).strip('"')


def _put_parts(
    calls: RemoteCalls, place: str, path: str, num_bytes: int, part_bytes: int, target: dict[str, str]
) -> list[dict[str, Any]]:
    def put(start: int) -> dict[str, Any]:
        body, number = os.pread(file.fileno(), part_bytes, start), start // part_bytes + 1
        answer = _call_s3(calls, f"{place} (part {number})", "upload_part", **target, PartNumber=number, Body=body)
        return {"PartNumber": number, "ETag": answer["ETag"]}

    with Path(path).open("rb") as file, ThreadPoolExecutor(_AT_ONCE) as threads:
        futures = [threads.submit(put, start) for start in range(0, num_bytes, part_bytes)]
        try:
            return [future.result() for future in futures]
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise


def _call_s3(calls: RemoteCalls, place: str, method: str, **options: Any) -> Any:
    num_bytes = len(options.get("Body", b""))
    return calls.call(place, "call_s3", method, doing="written", num_bytes=num_bytes, **options)


def _abort(calls: RemoteCalls, place: str, target: dict[str, str]) -> None:
    """Let the store forget the parts of an upload; what can't be forgotten now, remove_stale_uploads finds."""
    try:
        _call_s3(calls, place, "abort_multipart_upload", **target)
    except (StoreError, FileNotFoundError) as error:
        _logger.warning("%s: parts of an upload stay in the store for a day: %s", place, reason_of(error))


def _etag(path: str, num_bytes: int, part_bytes: int) -> str:
    """Return the ETag that S3 gives a file that comes in such parts."""
    if num_bytes <= part_bytes:
        return _md5(path).hex()
    digests = b""
    with Path(path).open("rb") as file:
        while part := file.read(part_bytes):
            digests += hashlib.md5(part, usedforsecurity=False).digest()
    whole = hashlib.md5(digests, usedforsecurity=False).hexdigest()
    return f"{whole}-{len(digests) // 16}"


def _md5(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).digest()


def _is_there(calls: RemoteCalls, place: str, path: str, num_bytes: int) -> bool:
    """Return whether the store holds the bytes of a local file, by length and its MD5, else by reading them back."""
    try:
        info = calls.call(place, "info", place)
    except FileNotFoundError:
        return False
    if info["size"] != num_bytes:
        return False
    stored = _stored_md5(info)
    return stored == _md5(path) if stored else _reads_back(calls, place, path, num_bytes)


def _stored_md5(info: dict[str, Any]) -> bytes | None:
    """Return the MD5 that Google's or Azure's store tells of an object, None if it tells none."""
    if value := info.get("md5Hash"):
        return base64.b64decode(value)
    value = (info.get("content_settings") or {}).get("content_md5")
    return bytes(value) if value else None


def _reads_back(calls: RemoteCalls, place: str, path: str, num_bytes: int) -> bool:
    with Path(path).open("rb") as file:
        for start in range(0, num_bytes, _READ_BYTES):
            part = file.read(_READ_BYTES)
            if calls.read_range(place, start, start + len(part)) != part:
                return False
    return True


def remove_stale_files() -> None:
    """Delete local files that killed processes were writing more than a day ago."""
    before = time.time() - _STALE.total_seconds()
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(FileNotFoundError, PermissionError):  # another user's
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) and found.st_mtime < before:
                path.unlink()


def remove_stale_uploads(calls: RemoteCalls, root: str) -> None:
    """Remove what uploads below `root` left that were begun more than a day ago and never ended.

    Parts in S3, and files in work/tmp of stores that are no object stores; the others forget by themselves.
    """
    before = datetime.datetime.now(datetime.UTC) - _STALE
    try:
        if calls.protocol in S3:
            _abort_stale(calls, root, before)
        elif calls.protocol not in OBJECT_STORES:
            _remove_stale_parts(calls, f"{root}/{TMP}", before)
    except (StoreError, FileNotFoundError) as error:  # a right of its own, which a build does not need
        _logger.info("%s: unfinished uploads can't be listed: %s", root, reason_of(error))


def _abort_stale(calls: RemoteCalls, root: str, before: datetime.datetime) -> None:
    bucket, _, prefix = root.partition("://")[2].partition("/")
    found = _call_s3(calls, root, "list_multipart_uploads", Bucket=bucket, Prefix=f"{prefix}/")
    for begun in found.get("Uploads", []):  # a thousand at most: the next build finds the next
        if begun["Initiated"] < before:
            _abort(calls, root, {"Bucket": bucket, "Key": begun["Key"], "UploadId": begun["UploadId"]})


def _remove_stale_parts(calls: RemoteCalls, folder: str, before: datetime.datetime) -> None:
    for path in calls.call(folder, "ls", folder, detail=False, many=True):
        name = path.rpartition("/")[2]
        if (match := _PART.match(name)) and int(match[1]) < before.timestamp():
            _remove_part(calls, f"{folder}/{name}")
