"""Where a machine keeps what it computed or fetched from stores: counts of samples, copies of shards."""

from __future__ import annotations

import os
from pathlib import Path


def default_cache_folder() -> Path:
    """Return the folder that the environment names in TOKENLOOM_CACHE, else ~/.cache/tokenloom; makes nothing."""
    return Path(os.environ.get("TOKENLOOM_CACHE") or "~/.cache/tokenloom").expanduser()
