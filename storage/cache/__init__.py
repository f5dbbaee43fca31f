"""What a machine keeps of versions between runs: shards of remote stores, numbers of samples, proofs of encoders."""

from __future__ import annotations

import os
from pathlib import Path

from tokenloom.errors import StoreError


def default_cache_folder() -> Path:
    """Return the folder of copied shards, counts and proofs: TOKENLOOM_CACHE or ~/.cache/tokenloom."""
    try:
        return Path(os.environ.get("TOKENLOOM_CACHE") or "~/.cache/tokenloom").expanduser()
    except RuntimeError as error:
        raise StoreError("this user has no home folder for ~/.cache/tokenloom; set TOKENLOOM_CACHE") from error
