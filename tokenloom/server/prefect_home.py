"""The folder of Prefect's database and settings; a temporary one if the user's can't be written."""

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
    """Set PREFECT_HOME to a temporary folder if ~/.prefect can't be written; call it before Prefect is imported.

    Prefect's server does not start without such a folder, for example in a container whose user has no home. The
    temporary folder is removed when the program ends. A PREFECT_HOME that the user has set is not changed. Prefect
    can't be imported without a home folder, so HOME names the same folder if the system knows none.
    """
    if _VARIABLE not in os.environ and not _is_usable():
        folder = os.environ[_VARIABLE] = tempfile.mkdtemp(prefix="tokenloom-prefect-")
        atexit.register(_remove, folder, os.getpid())
    if os.path.expanduser("~") == "~":
        os.environ["HOME"] = os.environ[_VARIABLE]


def _is_usable() -> bool:
    with suppress(OSError, RuntimeError):  # RuntimeError: the user has no home folder
        folder = Path.home() / ".prefect"
        folder.mkdir(mode=0o700, exist_ok=True)
        return os.access(folder, os.W_OK | os.X_OK)
    return False


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # not a forked child
        stop_servers()  # a running server would write to the folder again
        shutil.rmtree(folder, ignore_errors=True)
