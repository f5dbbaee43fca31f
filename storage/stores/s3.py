"""Requests to S3 itself, where fsspec's file interface would send more of them, or verify less.

Each page of a listing and each part of an upload is a request of its own, so a retry repeats one page or one part. The
SHA-256 of each part is sent with it, and S3 compares them. A server that does not return it may not have compared it;
from such a server, the object is read again.
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
from tokenloom.storage.stores import bucket_and_key
from tokenloom.storage.stores.local_files import file_sha256
from tokenloom.storage.stores.remote_calls import call
from tokenloom.storage.stores.remote_errors import reason_of
from tokenloom.storage.stores.store import MAX_TRANSFERS

Info = dict[str, Any]  # the facts of a file as fsspec gives them: "name", "type", "size" and the store's own fields

PART_BYTES = 32 * 2**20
_MAX_PARTS = 10_000  # a limit of S3
_MAX_REMOVED = 1000  # in one request; a limit of S3
_PARTS_AT_ONCE = 4
_logger = logging.getLogger("tokenloom")


def list_s3(place: str, bucket: str, prefix: str, *, deep: bool) -> list[Info]:
    """Return {"name", "type", "size", "ETag", "LastModified"} of the objects whose keys begin with `prefix`.

    Args:
        place: the URL of the store, for messages.
        bucket: its name.
        prefix: what the keys begin with; "" for all.
        deep: list the objects in folders too; else each folder is one entry of type "directory".

    Raises FileNotFoundError if the bucket does not exist, StoreError if the store cannot be listed.
    """
    found: list[Info] = []
    options: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix} | ({} if deep else {"Delimiter": "/"})
    while True:
        page = call(place, "call_s3", "list_objects_v2", **options)
        for item in page.get("CommonPrefixes", []):
            found.append({"name": f"{bucket}/{item['Prefix'].removesuffix('/')}", "type": "directory", "size": 0})
        for item in page.get("Contents", []):
            kept = {"size": item["Size"], "ETag": item["ETag"], "LastModified": item["LastModified"]}
            found.append({"name": f"{bucket}/{item['Key']}", "type": "file", **kept})
        if not page["IsTruncated"]:
            return found
        options["ContinuationToken"] = page["NextContinuationToken"]


def delete_s3(place: str, urls: Sequence[str]) -> None:
    """Delete objects, a thousand in a request; those that do not exist are ignored.

    Raises StoreError, which names an object, if the store refuses to delete it.
    """
    for start in range(0, len(urls), _MAX_REMOVED):
        names = [bucket_and_key(url) for url in urls[start : start + _MAX_REMOVED]]
        deleted = {"Objects": [{"Key": key} for _, key in names], "Quiet": True}
        answer = call(place, "call_s3", "delete_objects", writes=True, Bucket=names[0][0], Delete=deleted)
        if failed := answer.get("Errors"):
            url = f"s3://{names[0][0]}/{failed[0]['Key']}"
            raise StoreError(f"{url}: can't be deleted ({failed[0].get('Message')})")


def upload_s3(place: str, path: str, content_type: str | None) -> None:
    """Send a local file, in parts if it is large; errors as RemoteStore's upload."""
    bucket, key = bucket_and_key(place)
    target, typed = {"Bucket": bucket, "Key": key}, {"ContentType": content_type} if content_type else {}
    num_bytes = os.stat(path).st_size
    part_bytes = max(PART_BYTES, -(-num_bytes // _MAX_PARTS))
    for _ in range(MAX_TRANSFERS):
        if num_bytes <= part_bytes:
            answers = [_put(place, "put_object", Path(path).read_bytes(), **target, **typed)]
        else:
            answers = _upload_parts(place, path, part_bytes, target, {**target, **typed, "ChecksumAlgorithm": "SHA256"})
        if all(answer.get("ChecksumSHA256") for answer in answers) or _is_same(place, path, num_bytes):
            return
    raise StoreError(
        f"{place}: it arrived damaged {MAX_TRANSFERS} times, and the store did not notice; check the network between"
    )


def _upload_parts(
    place: str, path: str, part_bytes: int, target: dict[str, Any], begun: dict[str, Any]
) -> list[dict[str, Any]]:
    """Upload a file in parts; return the answers to them. The parts of a failed upload are deleted."""
    target = target | {"UploadId": call(place, "call_s3", "create_multipart_upload", writes=True, **begun)["UploadId"]}
    try:
        answers = _put_parts(place, path, part_bytes, target)
        parts = [
            {"PartNumber": number, **{name: answer[name] for name in ("ETag", "ChecksumSHA256") if answer.get(name)}}
            for number, answer in enumerate(answers, 1)
        ]
        with suppress(FileNotFoundError):  # an earlier try completed the upload, and its response was lost
            complete = {**target, "MultipartUpload": {"Parts": parts}}
            call(place, "call_s3", "complete_multipart_upload", writes=True, **complete)
        return answers
    except BaseException:
        _abort(place, target)
        raise


def _put_parts(place: str, path: str, part_bytes: int, target: dict[str, Any]) -> list[dict[str, Any]]:
    """Send all parts of a file, four at a time; return the answers in order."""

    def put(start: int) -> dict[str, Any]:
        body = os.pread(file.fileno(), part_bytes, start)
        return _put(place, "upload_part", body, PartNumber=start // part_bytes + 1, **target)

    with Path(path).open("rb") as file, ThreadPoolExecutor(_PARTS_AT_ONCE) as threads:
        futures = [threads.submit(put, start) for start in range(0, os.fstat(file.fileno()).st_size, part_bytes)]
        try:
            return [future.result() for future in futures]
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise


def _put(place: str, method: str, data: bytes, **options: Any) -> dict[str, Any]:
    """Send bytes with their SHA-256; return the answer."""
    checksum = base64.b64encode(hashlib.sha256(data).digest()).decode()
    sent = {"Body": data, "ChecksumSHA256": checksum, **options}
    answer: dict[str, Any] = call(place, "call_s3", method, writes=True, num_bytes=len(data), **sent)
    return answer


def _is_same(place: str, path: str, num_bytes: int) -> bool:
    """Return whether an object is the local file at `path`; reads it in parts."""
    with Path(path).open("rb") as file:
        written, stored = file_sha256(file), hashlib.sha256()
    for start in range(0, num_bytes, PART_BYTES):
        end = min(start + PART_BYTES, num_bytes)
        stored.update(call(place, "cat_file", place, start=start, end=end, num_bytes=end - start))
    return stored.hexdigest() == written


def abort_stale_s3(place: str, seconds: float) -> None:
    """Delete the parts of uploads below a URL that were begun so long ago."""
    before = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds)
    bucket, prefix = bucket_and_key(place)
    try:
        begun = call(place, "call_s3", "list_multipart_uploads", writes=True, Bucket=bucket, Prefix=f"{prefix}/")
    except (StoreError, FileNotFoundError) as error:  # listing them needs a permission that a build does not
        _logger.info("%s: unfinished uploads can't be listed: %s", place, reason_of(error))
        return
    for upload in begun.get("Uploads", []):  # at most a thousand; the next build finds more
        if upload["Initiated"] < before:
            _abort(place, {"Bucket": bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]})


def _abort(place: str, target: dict[str, Any]) -> None:
    """Delete the parts of an upload; `abort_stale_s3` finds those that cannot be deleted now."""
    try:
        call(place, "call_s3", "abort_multipart_upload", writes=True, **target)
    except (StoreError, FileNotFoundError) as error:
        _logger.warning("%s: parts of an upload stay in the store for a day: %s", place, reason_of(error))
