"""Exclusive create in remote stores: of several writers of a name one succeeds, where the store can say so."""

from __future__ import annotations

import tempfile
import uuid
from typing import Any

from tokenloom.storage.stores.local import TMP
from tokenloom.storage.stores.remote_calls import RemoteCalls
from tokenloom.storage.stores.uploads import PREFIX, naming_bucket, upload
from tokenloom.storage.stores.url_protocols import AZURE, OBJECT_STORES, S3

_MARK = "writer"  # in an object's metadata


def create(calls: RemoteCalls, place: str, data: bytes) -> None:
    """Write an object that must not exist yet; of several writers exactly one succeeds, where the store can say so.

    That holds where all write the same bytes too. An answer may be lost, and the request made again, here or in a
    library below: whether what is there then is ours, a mark of this call in the object's metadata tells.

    Raises FileExistsError if there is one, StoreError if it can't be written.
    """
    if calls.protocol not in OBJECT_STORES:
        _create_unless_there(calls, place, data)
        return
    mark = uuid.uuid4().hex
    options = {"mode": "create", **_marking(calls.protocol, mark)}
    with naming_bucket(place):
        try:
            calls.call(place, "pipe_file", place, data, doing="written", num_bytes=len(data), **options)
            return
        except FileExistsError as error:
            exists = error
    if _mark_of(calls, place) != mark:
        raise exists


def _marking(protocol: str, mark: str) -> dict[str, Any]:
    """Return the options of `pipe_file` that put a mark into the object's metadata."""
    if protocol in S3:
        return {"Metadata": {_MARK: mark}}
    if protocol in AZURE:  # adlfs has metadata of its own
        return {"headers": {f"x-ms-meta-{_MARK}": mark}}
    return {"metadata": {_MARK: mark}}


def _mark_of(calls: RemoteCalls, place: str) -> str | None:
    """Return the mark of the call that created an object; None if it has none, or is gone."""
    try:
        if calls.protocol in S3:
            metadata = calls.call(place, "metadata", place)
        else:
            metadata = calls.call(place, "info", place).get("metadata")
    except FileNotFoundError:
        return None
    return (metadata or {}).get(_MARK)


def _create_unless_there(calls: RemoteCalls, place: str, data: bytes) -> None:
    """Look first and write then, which is safe for one writer at a time."""
    if calls.call(place, "exists", place):
        raise FileExistsError(place)
    with tempfile.NamedTemporaryFile("wb", prefix=PREFIX) as file:
        file.write(data)
        file.flush()
        upload(calls, place, file.name)


def exclusion_problem(calls: RemoteCalls, folder: str) -> str | None:
    """Return what is unsafe about several writers at a time, None if the store refuses to create a name twice."""
    problem = (
        f"{folder.removesuffix(f'/{TMP}')}: this store lets two writers create the same name, so run one build of "
        "this dataset at a time"
    )
    if calls.protocol not in OBJECT_STORES:
        return problem  # its library looks first and writes then
    try:
        for _ in range(2):  # it stays there, and the next look needs one try
            create(calls, f"{folder}/exclusive", uuid.uuid4().bytes)
    except FileExistsError:
        return None
    return problem
