"""Requests to S3 itself, where fsspec's file interface would send more of them: listings, uploads in parts.

Each page of a listing and each part of an upload is a request of its own, so a retry repeats one page or one part.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from tokenloom.errors import StoreError
from tokenloom.storage.stores.remote import MARK, Info, RemoteStore
from tokenloom.storage.stores.remote_errors import reason_of
from tokenloom.storage.stores.remote_retries import RemoteCalls
from tokenloom.storage.stores.store import STALE_SECONDS
from tokenloom.storage.stores.urls import bucket_and_key

PART_BYTES = 32 * 2**20
_MAX_PARTS = 10_000  # a limit of S3
_MAX_REMOVED = 1000  # in one request; a limit of S3
_PARTS_AT_ONCE = 4
_logger = logging.getLogger("tokenloom")


class S3Store(RemoteStore):
    """Amazon's store, and others with its interface."""

    def _list(self, place: str, *, deep: bool) -> list[Info]:
        bucket, key = bucket_and_key(place)
        return list_s3(self._calls, place, bucket, f"{key.strip('/')}/".lstrip("/"), deep=deep)

    def _marked(self, mark: str) -> dict[str, Any]:
        return {"Metadata": {MARK: mark}}

    def _metadata(self, place: str) -> dict[str, str]:
        return dict(self._calls.call(place, "metadata", place) or {})

    def remove_files(self, paths: Sequence[str]) -> None:
        """Delete objects, a thousand in a request; those that do not exist are ignored.

        Raises StoreError, which names an object, if the store refuses to delete it.
        """
        bucket = bucket_and_key(self.root)[0]
        for start in range(0, len(paths), _MAX_REMOVED):
            keys = [{"Key": bucket_and_key(self.place(path))[1]} for path in paths[start : start + _MAX_REMOVED]]
            deleted = {"Objects": keys, "Quiet": True}
            answer = _write(self._calls, self.root, "delete_objects", Bucket=bucket, Delete=deleted)
            if failed := answer.get("Errors"):
                raise StoreError(f"s3://{bucket}/{failed[0]['Key']}: can't be deleted ({failed[0].get('Message')})")

    def remove_stale_temporaries(self) -> None:
        """Delete what killed processes left more than a day ago: files in TMPDIR, and parts of uploads."""
        super().remove_stale_temporaries()
        before = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=STALE_SECONDS)
        bucket, prefix = bucket_and_key(self.root)
        try:
            found = _write(self._calls, self.root, "list_multipart_uploads", Bucket=bucket, Prefix=f"{prefix}/")
            for upload in found.get("Uploads", []):  # at most a thousand; the next build finds more
                if upload["Initiated"] < before:
                    target = {"Bucket": bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]}
                    _abort(self._calls, self.root, target)
        except (StoreError, FileNotFoundError) as error:  # listing them needs a permission that a build does not
            _logger.info("%s: unfinished uploads can't be listed: %s", self.root, reason_of(error))

    def _upload(self, place: str, path: str, content_type: str | None) -> None:
        """Send a local file, in parts if it is large, each with its SHA-256; see RemoteStore."""
        num_bytes = os.stat(path).st_size
        part_bytes = max(PART_BYTES, -(-num_bytes // _MAX_PARTS))
        bucket, key = bucket_and_key(place)
        target = {"Bucket": bucket, "Key": key}
        typed = {"ContentType": content_type} if content_type else {}
        if num_bytes <= part_bytes:
            _write(self._calls, place, "put_object", **target, **typed, **_body(Path(path).read_bytes()))
            return
        begun = {**target, **typed, "ChecksumAlgorithm": "SHA256"}
        target["UploadId"] = _write(self._calls, place, "create_multipart_upload", **begun)["UploadId"]
        try:
            parts = {"Parts": _put_parts(self._calls, place, path, part_bytes, target)}
            with suppress(FileNotFoundError):  # an earlier try completed the upload, and its response was lost
                _write(self._calls, place, "complete_multipart_upload", **target, MultipartUpload=parts)
            return
        except FileNotFoundError as error:
            failure: BaseException = error
            if os.path.exists(path):  # else TMPDIR was deleted
                failure = StoreError(
                    f"{place}: the store dropped the upload before all parts arrived; check whether a rule of the "
                    "bucket deletes unfinished uploads that early"
                )
        except BaseException as error:  # noqa: BLE001  (raised below)
            failure = error
        _abort(self._calls, place, target)  # after the handler, so that its own errors do not name this one
        raise failure


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


def _body(data: bytes) -> dict[str, Any]:
    """Return the options that send bytes with their SHA-256, which S3 compares."""
    return {"Body": data, "ChecksumSHA256": base64.b64encode(hashlib.sha256(data).digest()).decode()}


def _put_parts(
    calls: RemoteCalls, place: str, path: str, part_bytes: int, target: dict[str, str]
) -> list[dict[str, Any]]:
    """Send all parts of a file; return their numbers and ETags, as S3 needs them to complete the upload."""

    def put(start: int) -> dict[str, Any]:
        body, number = os.pread(file.fileno(), part_bytes, start), start // part_bytes + 1
        sent = {"PartNumber": number, **_body(body)}
        answer = _write(calls, f"{place} (part {number})", "upload_part", **target, **sent)
        return {"PartNumber": number, "ETag": answer["ETag"], "ChecksumSHA256": sent["ChecksumSHA256"]}

    with Path(path).open("rb") as file, ThreadPoolExecutor(_PARTS_AT_ONCE) as threads:
        num_bytes = os.fstat(file.fileno()).st_size
        futures = [threads.submit(put, start) for start in range(0, num_bytes, part_bytes)]
        try:
            return [future.result() for future in futures]
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise


def _abort(calls: RemoteCalls, place: str, target: dict[str, str]) -> None:
    """Delete the parts of an upload; `remove_stale_uploads` finds those that cannot be deleted now."""
    try:
        _write(calls, place, "abort_multipart_upload", **target)
    except (StoreError, FileNotFoundError) as error:
        _logger.warning("%s: parts of an upload stay in the store for a day: %s", place, reason_of(error))


def _write(calls: RemoteCalls, place: str, method: str, **options: Any) -> Any:
    num_bytes = len(options.get("Body", b""))
    return calls.call(place, "call_s3", method, doing="written", num_bytes=num_bytes, **options)
