"""Records on tokenizers in the machine's cache: what a probe found out, what tokenizers are, what is slow to make."""

from __future__ import annotations

import contextlib
import os
import uuid
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.cache.cache_settings import default_cache_folder
from tokenloom.storage.formats.canonical import read_signed_record, sha256_of, sha256_of_bytes, sign_record
from tokenloom.storage.formats.records import Record

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True, slots=True)
class KeptRecord:
    """What is slow to make, valid for the `code` that made it: see installed_code."""

    code: str


Kept = TypeVar("Kept", bound=KeptRecord)


def machine_record_path(decides: str) -> Path:
    """Return where the record on something is kept; raises StoreError without a home folder.

    Args:
        decides: all that decides the record, as text.
    """
    return _named_record_path(sha256_of_bytes(decides.encode())[:32])


def _named_record_path(name: str) -> Path:
    return default_cache_folder() / "tokenizers" / f"{name}.json"


def installed_code(package: str) -> str | None:
    """Return the SHA-256 of the code that makes a tokenizer: of a package, as it lists its files, and of our modules.

    None if the package has no such list, or our modules are not files.
    """
    try:
        files = distribution(package).read_text("RECORD")
        modules = [path.read_bytes() for path in sorted(Path(__file__).parent.rglob("*.py"))]
    except (PackageNotFoundError, OSError):
        return None
    return sha256_of([files, *map(sha256_of_bytes, modules)]) if files and modules else None


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


def find_kept(name: str, code: str | None, kind: type[Kept]) -> Kept | None:
    """Return what `keep` has kept under a name for this code; None if there is nothing, or the code is unknown."""
    if code is None:
        return None
    try:
        kept = find_machine_record(_named_record_path(name), kind)
    except StoreError:  # there is no cache
        return None
    return kept if kept is not None and kept.code == code else None


def keep(name: str, record: KeptRecord) -> None:
    """Keep a record under a name, in place of one for other code, if this machine has a cache that can be written."""
    with contextlib.suppress(OSError, StoreError):
        write_machine_record(_named_record_path(name), record)
