"""Listings of S3, page by page: a page of a thousand is a request of its own, tried again by itself."""

from __future__ import annotations

from typing import Any

from tokenloom.storage.stores.remote_calls import RemoteCalls


def list_s3(calls: RemoteCalls, place: str, bucket: str, prefix: str, *, deep: bool) -> list[dict[str, Any]]:
    """Return {"name", "type", "size", "ETag"} of the objects whose keys begin with `prefix`, as fsspec has them.

    Args:
        calls: of the store.
        place: its URL, for messages.
        bucket: its name.
        prefix: of keys; "" for all.
        deep: list what lies below folders too; else a folder is an entry of its own, of type "directory".

    Raises FileNotFoundError if there is no such bucket, StoreError if the store does not answer well.
    """
    found: list[dict[str, Any]] = []
    options: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix} | ({} if deep else {"Delimiter": "/"})
    while True:
        page = calls.call(place, "call_s3", "list_objects_v2", **options)
        found += [_folder(bucket, item["Prefix"]) for item in page.get("CommonPrefixes", [])]
        found += [_file(bucket, item) for item in page.get("Contents", [])]
        if not page["IsTruncated"]:
            return found
        options["ContinuationToken"] = page["NextContinuationToken"]


def _folder(bucket: str, prefix: str) -> dict[str, Any]:
    return {"name": f"{bucket}/{prefix.removesuffix('/')}", "type": "directory", "size": 0}


def _file(bucket: str, item: dict[str, Any]) -> dict[str, Any]:
    return {"name": f"{bucket}/{item['Key']}", "type": "file", "size": item["Size"], "ETag": item["ETag"]}
