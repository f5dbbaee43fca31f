"""The folder of a `tokenloom up`: Prefect's database and storage, the logs, and where its server is."""

from __future__ import annotations

import json
import os
from pathlib import Path

_NAME = "server.json"


def default_home() -> Path:
    """Return the folder in TOKENLOOM_UP_HOME, else ~/.tokenloom."""
    return Path(os.environ.get("TOKENLOOM_UP_HOME") or Path.home() / ".tokenloom")


def note_url(home: Path, url: str) -> None:
    """Let `tokenloom build` find the server."""
    (home / _NAME).write_text(json.dumps({"api": url}) + "\n", encoding="utf-8")


def forget_url(home: Path) -> None:
    """Let nobody look for a server that has stopped."""
    (home / _NAME).unlink(missing_ok=True)


def running_url(home: Path) -> str | None:
    """Return the API of the server that was noted last; it may have been killed."""
    try:
        return str(json.loads((home / _NAME).read_text(encoding="utf-8"))["api"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
