"""Exclusive create in remote stores: exactly one of several writers of a name succeeds if the store supports it."""

from __future__ import annotations

import uuid
from typing import Any

from tokenloom.storage.stores import local_files
from tokenloom.storage.stores.remote_retries import RemoteCalls
from tokenloom.storage.stores.store import TMP
from tokenloom.storage.stores.uploads import translate_missing_bucket, uploading
from tokenloom.storage.stores.urls import AZURE, OBJECT_STORES, S3

_MARK = "writer"  # in an object's metadata


def create_exclusively(calls: RemoteCalls, place: str, data: bytes) -> None:
    """Write an object that must not exist yet; exactly one of several writers succeeds if the store supports it.

    This holds even if all writers send the same bytes. If a response is lost, the request is repeated, here or in a
    library below; a random mark in the object's metadata then shows whether this call wrote the object.

    Raises FileExistsError if the object exists, StoreError if it cannot be written.
    """
    if calls.scheme not in OBJECT_STORES:
        _create_unless_exists(calls, place, data)
        return
    mark = uuid.uuid4().hex
    options: dict[str, Any] = {"mode": "create", **_mark_options(calls.scheme, mark)}
    with translate_missing_bucket(place):
        try:
            calls.call(place, "pipe_file", place, data, doing="written", num_bytes=len(data), **options)
            return
        except FileExistsError as error:
            exists = error
    if _mark_of(calls, place) != mark:
        raise exists


def excludes_writers(calls: RemoteCalls) -> bool:
    """Return whether the store refuses to create a name twice; leaves a probe in its work/tmp."""
    if calls.scheme not in OBJECT_STORES:
        return False  # the library checks first, then writes
    try:
        for _ in range(2):  # the probe stays, so the next build needs one attempt
            create_exclusively(calls, f"{calls.url}/{TMP}/exclusive", uuid.uuid4().bytes)
    except FileExistsError:
        return True
    return False


def _mark_options(scheme: str, mark: str) -> dict[str, dict[str, str]]:
    """Return the options of `pipe_file` that put a mark into the object's metadata."""
    if scheme in S3:
        return {"Metadata": {_MARK: mark}}
    if scheme in AZURE:  # adlfs overwrites `metadata`
        return {"headers": {f"x-ms-meta-{_MARK}": mark}}
    return {"metadata": {_MARK: mark}}


def _mark_of(calls: RemoteCalls, place: str) -> str | None:
    """Return the mark of the call that created an object; None if it has no mark or no longer exists."""
    try:
        if calls.scheme in S3:
            metadata = calls.call(place, "metadata", place)
        else:
            metadata = calls.call(place, "info", place).get("metadata")
    except FileNotFoundError:
        return None
    return (metadata or {}).get(_MARK)


def _create_unless_exists(calls: RemoteCalls, place: str, data: bytes) -> None:
    """Check first, then write: safe for one writer at a time."""
    if calls.call(place, "exists", place):
        raise FileExistsError(place)
    with uploading(calls, place) as file:
        local_files.write_all(file, data)
