"""The folder that Prefect keeps its database and settings in; a temporary one where the user's can't be written."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from tokenloom.server.prefect_server import stop_servers

_VARIABLE = "PREFECT_HOME"


def ensure_prefect_home() -> None:
    """Let Prefect, which is not imported yet, use a temporary folder if it can't write to ~/.prefect.

    Its server does not start without a folder, as in a container whose user has no home. The temporary folder is
    removed when the program ends. A PREFECT_HOME that the user set is left as it is.
    """
    if _VARIABLE in os.environ or _is_usable():
        return
    folder = tempfile.mkdtemp(prefix="tokenloom-prefect-")
    os.environ[_VARIABLE] = folder
    atexit.register(_remove, folder, os.getpid())


def _is_usable() -> bool:
    with suppress(OSError, RuntimeError):  # RuntimeError: the user has no home at all
        folder = Path.home() / ".prefect"
        folder.mkdir(mode=0o700, exist_ok=True)
        return os.access(folder, os.W_OK | os.X_OK)
    return False


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # not a fork of it
        stop_servers()  # they would write into the folder again
        shutil.rmtree(folder, ignore_errors=True)
