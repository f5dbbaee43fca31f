"""Canonical JSON, and JSON files whose last field is their own checksum: plain objects or records."""

from __future__ import annotations

import gc
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from tokenloom.errors import FormatError, message_of
from tokenloom.storage.formats.records import JsonObject, Mismatch, Record, decode_record, fields_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_MARK = b',"checksum":"'


def canonical_json(value: object) -> bytes:
    """Return JSON or a record as canonical JSON: sorted keys, no spaces, UTF-8, no NaN."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=fields_of
    )
    return text.encode()


def sha256_of(value: object) -> str:
    """Return the SHA-256 of the canonical JSON of `value`, in hexadecimal."""
    return sha256_of_bytes(canonical_json(value))


def sha256_of_bytes(data: bytes | memoryview) -> str:
    """Return the SHA-256 of `data`, in hexadecimal."""
    import hashlib  # OpenSSL takes 3 ms to load, and `import tokenloom` hashes nothing

    return hashlib.sha256(data).hexdigest()


def sign(value: Mapping[str, object] | DataclassInstance) -> bytes:
    """Return an object or record as canonical JSON with `checksum` as its last field: the SHA-256 of all bytes before.

    Example: {"a": 1} -> {"a":1,"checksum":"..."} where the SHA-256 is that of the bytes `{"a":1`
    """
    body = canonical_json(value)[:-1]
    return body + _MARK + sha256_of_bytes(body).encode() + b'"}'


def read_signed(data: bytes, place: str) -> JsonObject:
    """Return a signed JSON object without its checksum; raises FormatError if the file is damaged.

    Args:
        data: the bytes of the file.
        place: the name of the file, for the message.
    """
    end = data.rfind(_MARK)  # `data` is not sliced below: a manifest may have 34 MB
    with memoryview(data) as view:
        digest = sha256_of_bytes(view[: max(0, end)])
    if end < 0 or data[end + len(_MARK) :] != digest.encode() + b'"}':
        raise FormatError(f"{place}: the checksum does not match its bytes; the file is damaged or incomplete")
    collects = gc.isenabled()
    gc.disable()  # JSON has no cycles, and one collection in a program with torch takes 150 ms
    try:
        value = cast(JsonObject, json.loads(data))  # an object: it ends with "}"
    except (ValueError, RecursionError) as error:  # not written by a release of tokenloom
        raise FormatError(f"{place}: its checksum matches, but it does not hold valid JSON") from error
    finally:
        if collects:
            gc.enable()
    del value["checksum"]
    return value


def read_signed_record(data: bytes, place: str, kind: type[Record]) -> Record:
    """Return a signed record; raises FormatError if the file is damaged.

    Args:
        data: the bytes of the file.
        place: the name of the file, for the message.
        kind: the record's class.
    """
    try:
        return decode_record(kind, read_signed(data, place))
    except Mismatch as error:
        raise FormatError(f"{place}: {message_of(error)}") from error
