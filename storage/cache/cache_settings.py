"""The folder and the size limit of the cache: TOKENLOOM_CACHE, TOKENLOOM_CACHE_LIMIT and their defaults."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from tokenloom.errors import StoreError

if TYPE_CHECKING:
    from pathlib import Path

_DEFAULT_LIMIT_BYTES = 100 * 10**9
_LIMIT_VARIABLE = "TOKENLOOM_CACHE_LIMIT"
_FREE_SHARE = 0.8  # the largest share of the file system's free space that the default limit takes
_LIMIT = r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?))?B?\s*\Z"  # compiled where it is used: most readers set no limit


def default_cache_folder() -> Path:
    """Return the folder of copied shards, counts and proofs: TOKENLOOM_CACHE or ~/.cache/tokenloom.

    For a user without a home folder, as in a container with an arbitrary user id, it is a folder in TMPDIR.
    """
    from pathlib import Path  # late: its import takes 5 ms of the reader's 25

    try:
        return Path(os.environ.get("TOKENLOOM_CACHE") or "~/.cache/tokenloom").expanduser()
    except RuntimeError:
        return _temporary_folder()


def _temporary_folder() -> Path:
    """Return this user's folder in TMPDIR, which need not exist; raises StoreError if another user has made it."""
    import tempfile
    from pathlib import Path

    folder = Path(tempfile.gettempdir(), f"tokenloom-{os.getuid()}")
    if os.path.lexists(folder) and folder.lstat().st_uid != os.getuid():
        raise StoreError(f"{folder}: belongs to another user, and this user has no home folder; set TOKENLOOM_CACHE")
    return folder


def default_limit(folder: Path) -> int:
    """Return the limit in bytes of the cache in `folder`; raises StoreError if TOKENLOOM_CACHE_LIMIT is not a size."""
    return _given_limit(os.environ.get(_LIMIT_VARIABLE, "")) or _free_limit(folder)


def _given_limit(text: str) -> int | None:
    """Return the number of bytes in a text such as "100GB" or "93 GiB", None for an empty text."""
    if not text.strip():
        return None
    match = re.match(_LIMIT, text, re.I)
    base = 1024 if match and match[3] else 1000
    limit = float(match[1]) * base ** " KMGT".index((match[2] or " ").upper()) if match else 0.0
    if not 1 <= limit < 2**63:
        raise StoreError(f"{_LIMIT_VARIABLE} is {text!r}: write bytes, such as 100GB or 93GiB")
    return int(limit)


def _free_limit(folder: Path) -> int:
    """Return a limit that leaves part of the file system free; the bytes in the cache count as free."""
    import shutil

    from tokenloom.storage.cache.cache_files import CacheFiles  # its locks are for remote stores only

    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free + CacheFiles(folder, None).used()
    return max(1, min(_DEFAULT_LIMIT_BYTES, int(_FREE_SHARE * free)))
