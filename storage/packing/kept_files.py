"""Small files that a machine keeps in the cache folder, so that their content is computed once."""

from __future__ import annotations

import contextlib
import logging
import os
from functools import cache
from pathlib import Path

_logger = logging.getLogger("tokenloom")


def keep(path: Path, *parts: bytes | memoryview) -> bool:
    """Write a file in one step; return False, and log why once for each folder, if that fails."""
    temporary = path.with_name(f"{path.name}.{os.urandom(16).hex()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as file:
            file.writelines(parts)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        _warn(path.parent, error.strerror)
        return False
    return True


@cache
def _warn(folder: Path, reason: str) -> None:
    _logger.warning("%s: can't be written: %s; TOKENLOOM_CACHE names another folder", folder, reason)
