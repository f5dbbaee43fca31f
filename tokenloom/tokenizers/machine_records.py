"""Records on tokenizers in the machine's cache: what is slow to find out or to make.

A record lies under a hash of all that decides it, so it can be missing, but not out of date. Whatever keeps a record
from being read or written costs only the time to make it again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, cast

from tokenloom.errors import FormatError
from tokenloom.storage.cache.cache_settings import default_cache_folder
from tokenloom.storage.formats.canonical import read_signed_record, sha256_of, sha256_of_bytes, sign_record
from tokenloom.storage.formats.records import Record
from tokenloom.storage.stores.local_files import read_regular, replace_file

_held: dict[str, Any] = {}  # records of this process that its cache does not keep, by their names


def remembered(kind: type[Record], decides: object, make: Callable[[], Record]) -> Record:
    """Return a record: as this machine keeps it, or else made and kept.

    Args:
        kind: the record's class.
        decides: all that decides the record, as JSON; None if that is unknown, so that nothing is kept.
        make: makes the record.
    """
    if decides is None:
        return make()
    found = find_record(kind, decides)
    if found is None:
        found = make()
        keep_record(found, decides)
    return found


def find_record(kind: type[Record], decides: object) -> Record | None:
    """Return the record that this process or machine keeps; None if it is missing, damaged or can't be read."""
    name = _name(kind, decides)
    if (held := _held.get(name)) is not None:
        return cast("Record", held)
    try:
        path = _folder() / name
        return read_signed_record(read_regular(path), str(path), kind)
    except (OSError, FormatError):
        return None


def keep_record(record: Record, decides: object, *, only_here: bool = False) -> None:
    """Keep a record: on this machine, or only in this process if `only_here`, or if its cache can't be written."""
    name = _name(type(record), decides)
    _held[name] = record
    if not only_here:
        with contextlib.suppress(OSError):  # StoreError is one, without a cache folder
            replace_file(_folder() / name, sign_record(record))
            del _held[name]


def _name(kind: type[Record], decides: object) -> str:
    return f"{kind.__name__}-{sha256_of(decides)[:32]}.json"


def _folder() -> Path:
    return default_cache_folder() / "tokenizers"


def installed_code(package: str) -> str | None:
    """Return the SHA-256 of the code that makes tokenizers: our modules, and a package. None if that is unknown.

    Args:
        package: its name on PyPI; it must list its files with their checksums.
    """
    try:
        files = distribution(package).read_text("RECORD")
    except (PackageNotFoundError, OSError):
        return None
    ours = _our_code(Path(__file__).parent)
    return sha256_of([files, ours]) if files and ours else None


@cache
def _our_code(folder: Path) -> list[str]:
    """Return the SHA-256 of each of our modules; none where they are not files."""
    return [sha256_of_bytes(path.read_bytes()) for path in sorted(folder.rglob("*.py"))]
