"""The folder of `tokenloom up`: Prefect's database and storage, the logs, and the URL of the server."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tokenloom.storage.stores.local_files import read_regular

_NAME = "server.json"


def default_home() -> Path:
    """Return the folder named by TOKENLOOM_UP_HOME; ~/.tokenloom if it is not set."""
    return Path(os.environ.get("TOKENLOOM_UP_HOME") or Path(os.path.expanduser("~")) / ".tokenloom")


def note_url(home: Path, url: str) -> None:
    """Write the URL of the server's API, so that `tokenloom build` finds the server."""
    (home / _NAME).write_text(json.dumps({"api": url}) + "\n", encoding="utf-8")


def forget_url(home: Path) -> None:
    """Remove the URL of a server that has stopped."""
    (home / _NAME).unlink(missing_ok=True)


def running_url(home: Path) -> str | None:
    """Return the URL that was written last; None if there is none. The server may have been killed since."""
    try:
        return str(json.loads(read_regular(home / _NAME))["api"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
