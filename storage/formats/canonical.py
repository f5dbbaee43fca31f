"""Canonical JSON, and JSON files that carry their own checksum as last field."""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tokenloom.errors import FormatError

_MARK = b',"checksum":"'


def canonical_json(value: Any) -> bytes:
    """Return the one way to write `value`: sorted keys, no spaces, UTF-8, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def sha256_of(value: Any) -> str:
    """Return the SHA-256 of the canonical JSON of `value`, in hexadecimal."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def sign(value: dict[str, Any]) -> bytes:
    """Return canonical JSON of `value` with a last field `checksum`: SHA-256 of all bytes before it.

    Example: {"a": 1} -> {"a":1,"checksum":"..."} where the SHA-256 is that of the bytes {"a":1
    """
    body = canonical_json(value)[:-1]
    return body + _MARK + hashlib.sha256(body).hexdigest().encode() + b'"}'


def read_signed(data: bytes, place: str) -> dict[str, Any]:
    """Return the value of a signed JSON file without its checksum; raises FormatError if it is damaged.

    Args:
        data: the bytes of the file.
        place: the name of the file, for the message.
    """
    end = data.rfind(_MARK)  # no slice of `data` below: a manifest may have 34 MB
    with memoryview(data) as view:
        digest = hashlib.sha256(view[: max(0, end)]).hexdigest()
    if end < 0 or data[end + len(_MARK) :] != digest.encode() + b'"}':
        raise FormatError(f"{place}: the checksum does not match its bytes; the file is damaged or incomplete")
    try:
        with _without_collection():
            value: dict[str, Any] = json.loads(data)
    except (ValueError, RecursionError) as error:  # its writer was no release of this
        raise FormatError(f"{place}: its checksum matches, but it holds no JSON that can be read") from error
    del value["checksum"]
    return value


@contextmanager
def _without_collection() -> Iterator[None]:
    """Keep the collector of cycles from running: JSON has none, and a run over a program with torch takes 150 ms."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
