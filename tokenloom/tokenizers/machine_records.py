"""Records on tokenizers in the machine's cache: what a probe found out, what tokenizers are, what is slow to make."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.cache.cache_settings import default_cache_folder
from tokenloom.storage.formats.canonical import read_signed_record, sha256_of, sha256_of_bytes, sign_record
from tokenloom.storage.formats.records import Record
from tokenloom.storage.stores.local_files import read_regular, replace_file

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True, slots=True)
class KeptRecord:
    """What is slow to make: its `name`, and the `code` that made it, see installed_code."""

    name: str
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


def installed_code(package: str | None = None) -> str:
    """Return the SHA-256 of the code that makes tokenizers: our modules, and a package. Empty if that is unknown.

    Args:
        package: its name on PyPI; it must list its files with their checksums. None for our modules alone.
    """
    try:
        files = "ours" if package is None else distribution(package).read_text("RECORD")
        modules = [path.read_bytes() for path in sorted(Path(__file__).parent.rglob("*.py"))]
    except (PackageNotFoundError, OSError):
        return ""
    return sha256_of([files, *map(sha256_of_bytes, modules)]) if files and modules else ""


def find_machine_record(path: Path, kind: type[Record]) -> Record | None:
    """Return the record in a file; None if it is missing, damaged or of another kind."""
    try:
        return read_signed_record(read_regular(path), str(path), kind)
    except (OSError, FormatError):
        return None


def write_machine_record(path: Path, record: DataclassInstance) -> None:
    """Write a record to a path atomically; raises OSError if the cache can't be written."""
    replace_file(path, sign_record(record))


def find_kept_record(name: str, code: str, kind: type[Kept]) -> Kept | None:
    """Return the record that is kept under a name; None if there is none for this code, or its file was renamed.

    Args:
        name: its file's, without .json.
        code: see installed_code.
        kind: the record's class.
    """
    if not code:
        return None
    try:
        kept = find_machine_record(_named_record_path(name), kind)
    except StoreError:  # this machine has no cache folder
        return None
    return kept if kept is not None and (kept.name, kept.code) == (name, code) else None


def write_kept_record(record: KeptRecord) -> None:
    """Keep a record under its name, in place of one for other code; do nothing if its code is unknown.

    A cache that is missing or can't be written only costs the time to make the record again.
    """
    if not record.code:
        return
    with contextlib.suppress(OSError, StoreError):
        path = _named_record_path(record.name)
        write_machine_record(path, record)
        for left in path.parent.glob(f"{path.name}.*"):  # by a process that was killed while it wrote
            left.unlink(missing_ok=True)
