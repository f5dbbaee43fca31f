"""How much the cache of shards may hold when a program does not say."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from tokenloom.errors import StoreError
from tokenloom.storage.cache.cache_files import CacheFiles

DEFAULT_LIMIT_BYTES = 100 * 10**9
VARIABLE = "TOKENLOOM_CACHE_LIMIT"
_FREE_SHARE = 0.8  # of the file system's free space, at most, unless a limit is given
_LIMIT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?))?B?\s*\Z", re.I)


def default_limit(folder: Path) -> int:
    """Return the limit in bytes of the cache in `folder`; raises StoreError if TOKENLOOM_CACHE_LIMIT is none."""
    return _given_limit(os.environ.get(VARIABLE, "")) or _free_limit(folder)


def _given_limit(text: str) -> int | None:
    if not text.strip():
        return None
    match = _LIMIT.match(text)
    base = 1024 if match and match[3] else 1000
    limit = int(float(match[1]) * base ** " KMGT".index((match[2] or " ").upper())) if match else 0
    if limit < 1:
        raise StoreError(f"{VARIABLE} is {text!r}: write bytes, such as 100GB or 93GiB")
    return limit


def _free_limit(folder: Path) -> int:
    """Return a limit that leaves some of the file system to others; what the cache holds counts as free."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free + CacheFiles(folder, None).used()
    return max(1, min(DEFAULT_LIMIT_BYTES, int(_FREE_SHARE * free)))
