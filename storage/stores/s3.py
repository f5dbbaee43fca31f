"""Requests to S3 itself, where fsspec's file interface would send more of them: listings, uploads in parts.

Each page of a listing and each part of an upload is a request of its own, so a retry repeats one page or one part.
"""

from __future__ import annotations

import datetime
import hashlib
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tokenloom.errors import StoreError
from tokenloom.storage.stores.remote_errors import reason_of
from tokenloom.storage.stores.remote_kinds import Info, ObjectStoreKind, content_type_of
from tokenloom.storage.stores.remote_retries import RemoteCalls
from tokenloom.storage.stores.urls import bucket_and_key

PART_BYTES = 32 * 2**20
_MAX_PARTS = 10_000  # a limit of S3
_MAX_REMOVED = 1000  # in one request; a limit of S3
_PARTS_AT_ONCE = 4
_logger = logging.getLogger("tokenloom")


class S3Kind(ObjectStoreKind):
    """Amazon's store, and others with its interface."""

    def list_folder(self, place: str) -> list[Info]:
        """Return info of each name in a folder; raises FileNotFoundError, StoreError."""
        return self._list(place, deep=False)

    def list_below(self, place: str) -> list[Info]:
        """Return info of all objects in a folder and below; raises FileNotFoundError, StoreError."""
        return self._list(place, deep=True)

    def _list(self, place: str, *, deep: bool) -> list[Info]:
        bucket, key = bucket_and_key(place)
        return list_s3(self.calls, place, bucket, f"{key.strip('/')}/".lstrip("/"), deep=deep)

    def remove_files(self, places: Sequence[str]) -> None:
        """Delete objects, a thousand in a request; those that do not exist are ignored.

        Raises StoreError, which names an object, if the store refuses to delete it.
        """
        url = self.calls.url
        bucket = bucket_and_key(url)[0]
        for start in range(0, len(places), _MAX_REMOVED):
            keys = [{"Key": bucket_and_key(place)[1]} for place in places[start : start + _MAX_REMOVED]]
            deleted = {"Objects": keys, "Quiet": True}
            answer = _write(self.calls, url, "delete_objects", Bucket=bucket, Delete=deleted)
            if failed := answer.get("Errors"):
                raise StoreError(f"s3://{bucket}/{failed[0]['Key']}: can't be deleted ({failed[0].get('Message')})")

    def _remove_uploads(self, before: datetime.datetime) -> None:
        url = self.calls.url
        bucket, prefix = bucket_and_key(url)
        found = _write(self.calls, url, "list_multipart_uploads", Bucket=bucket, Prefix=f"{prefix}/")
        for upload in found.get("Uploads", []):  # at most a thousand; the next build finds more
            if upload["Initiated"] < before:
                _abort(self.calls, url, {"Bucket": bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]})

    def _put(self, place: str, path: str) -> bool:
        return _put_file(self.calls, place, path) == etag(path)

    def _with_metadata(self, metadata: dict[str, str]) -> dict[str, Any]:
        return {"Metadata": metadata}

    def _metadata(self, place: str) -> dict[str, str]:
        return dict(self.calls.call(place, "metadata", place) or {})


def list_s3(calls: RemoteCalls, place: str, bucket: str, prefix: str, *, deep: bool) -> list[Info]:
    """Return {"name", "type", "size", "ETag", "LastModified"} of the objects whose keys begin with `prefix`.

    Args:
        calls: the requests to the store.
        place: its URL, for messages.
        bucket: its name.
        prefix: what the keys begin with; "" for all.
        deep: list the objects in folders too; else each folder is one entry of type "directory".

    Raises FileNotFoundError if the bucket does not exist, StoreError if the store cannot be listed.
    """
    found: list[Info] = []
    options: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix} | ({} if deep else {"Delimiter": "/"})
    while True:
        page = calls.call(place, "call_s3", "list_objects_v2", **options)
        found += [_folder(bucket, item["Prefix"]) for item in page.get("CommonPrefixes", [])]
        found += [_file(bucket, item) for item in page.get("Contents", [])]
        if not page["IsTruncated"]:
            return found
        options["ContinuationToken"] = page["NextContinuationToken"]


def _folder(bucket: str, prefix: str) -> Info:
    return {"name": f"{bucket}/{prefix.removesuffix('/')}", "type": "directory", "size": 0}


def _file(bucket: str, item: dict[str, Any]) -> Info:
    shown = {"size": item["Size"], "ETag": item["ETag"], "LastModified": item["LastModified"]}
    return {"name": f"{bucket}/{item['Key']}", "type": "file", **shown}


def _put_file(calls: RemoteCalls, place: str, path: str) -> str:
    """Send a local file to `place`, in parts if it is large; return its ETag, "" if the last response was lost."""
    num_bytes = os.stat(path).st_size
    part_bytes = _part_bytes(num_bytes)
    bucket, key = bucket_and_key(place)
    target = {"Bucket": bucket, "Key": key}
    shown = {"ContentType": content_type} if (content_type := content_type_of(place)) else {}
    if num_bytes <= part_bytes:
        answer = _write(calls, place, "put_object", **target, **shown, Body=Path(path).read_bytes())
        return str(answer["ETag"]).strip('"')
    target["UploadId"] = _write(calls, place, "create_multipart_upload", **target, **shown)["UploadId"]
    try:
        return _complete(calls, place, target, _put_parts(calls, place, path, part_bytes, target))
    except FileNotFoundError as error:
        if not os.path.exists(path):  # TMPDIR was deleted
            failure: BaseException = error
        else:
            raise StoreError(
                f"{place}: the store dropped the upload before all parts arrived; check whether a rule of the bucket "
                "deletes unfinished uploads that early"
            ) from error
    except BaseException as error:  # noqa: BLE001  (raised below)
        failure = error
    _abort(calls, place, target)  # after the handler, so that its own errors do not name this one as their context
    raise failure


def etag(path: str) -> str:
    """Return the ETag that S3 gives a local file sent by `_put_file`: its MD5, or the MD5 of the MD5s of its parts."""
    num_bytes = os.stat(path).st_size
    part_bytes = _part_bytes(num_bytes)
    digests = b""
    with Path(path).open("rb") as file:
        if num_bytes <= part_bytes:
            return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        while part := file.read(part_bytes):
            digests += hashlib.md5(part, usedforsecurity=False).digest()
    whole = hashlib.md5(digests, usedforsecurity=False).hexdigest()
    return f"{whole}-{len(digests) // 16}"


def _part_bytes(num_bytes: int) -> int:
    return max(PART_BYTES, -(-num_bytes // _MAX_PARTS))


def _put_parts(
    calls: RemoteCalls, place: str, path: str, part_bytes: int, target: dict[str, str]
) -> list[dict[str, Any]]:
    """Send all parts of a file; return their numbers and ETags, as S3 needs them to complete the upload."""

    def put(start: int) -> dict[str, Any]:
        body, number = os.pread(file.fileno(), part_bytes, start), start // part_bytes + 1
        answer = _write(calls, f"{place} (part {number})", "upload_part", **target, PartNumber=number, Body=body)
        return {"PartNumber": number, "ETag": answer["ETag"]}

    with Path(path).open("rb") as file, ThreadPoolExecutor(_PARTS_AT_ONCE) as threads:
        num_bytes = os.fstat(file.fileno()).st_size
        futures = [threads.submit(put, start) for start in range(0, num_bytes, part_bytes)]
        try:
            return [future.result() for future in futures]
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise


def _complete(calls: RemoteCalls, place: str, target: dict[str, str], parts: list[dict[str, Any]]) -> str:
    try:
        answer = _write(calls, place, "complete_multipart_upload", **target, MultipartUpload={"Parts": parts})
    except FileNotFoundError:  # an earlier try completed the upload, and its response was lost
        return ""
    return str(answer["ETag"]).strip('"')


def _abort(calls: RemoteCalls, place: str, target: dict[str, str]) -> None:
    """Delete the parts of an upload; `remove_stale_uploads` finds those that cannot be deleted now."""
    try:
        _write(calls, place, "abort_multipart_upload", **target)
    except (StoreError, FileNotFoundError) as error:
        _logger.warning("%s: parts of an upload stay in the store for a day: %s", place, reason_of(error))


def _write(calls: RemoteCalls, place: str, method: str, **options: Any) -> Any:
    num_bytes = len(options.get("Body", b""))
    return calls.call(place, "call_s3", method, doing="written", num_bytes=num_bytes, **options)
