"""Small records on tokenizers in the machine's cache: what a probe found out, and what tokenizers are."""

from __future__ import annotations

import hashlib
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from tokenloom.errors import FormatError
from tokenloom.storage.cache.cache_settings import default_cache_folder
from tokenloom.storage.formats.canonical import read_signed_record, sign_record
from tokenloom.storage.formats.records import Record

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def machine_record_path(decides: str) -> Path:
    """Return where the record on something is kept; raises StoreError without a home folder.

    Args:
        decides: all that decides the record, as text.
    """
    return default_cache_folder() / "tokenizers" / f"{hashlib.sha256(decides.encode()).hexdigest()[:32]}.json"


def find_machine_record(path: Path, kind: type[Record]) -> Record | None:
    """Return the record in a file; None if it is missing, damaged or of another kind."""
    try:
        return read_signed_record(path.read_bytes(), str(path), kind)
    except (OSError, FormatError):
        return None


def write_machine_record(path: Path, record: DataclassInstance) -> None:
    """Write a record atomically; raises OSError if the cache can't be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    try:
        temporary.write_bytes(sign_record(record))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
