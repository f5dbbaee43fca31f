"""Small records on tokenizers in the machine's cache: what a probe found out, and what tokenizers are."""

from __future__ import annotations

import hashlib
import os
import uuid
from importlib.metadata import PackageNotFoundError, distribution
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
    return named_record_path(hashlib.sha256(decides.encode()).hexdigest()[:32])


def named_record_path(name: str) -> Path:
    """Return where a record with a name of its own is kept; raises StoreError without a home folder."""
    return default_cache_folder() / "tokenizers" / f"{name}.json"


def installed_code(package: str) -> list[str] | None:
    """Return checksums of all code that makes a tokenizer: of a package, as it lists its files, and of our modules.

    None if the package has no such list, or our modules are not files.
    """
    try:
        files = distribution(package).read_text("RECORD")
        modules = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
    except (PackageNotFoundError, OSError):
        return None
    return [hashlib.sha256(data).hexdigest() for data in (files.encode(), *modules)] if files and modules else None


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
