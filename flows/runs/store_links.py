"""The URLs of a store's pages: those of a store that a web server has, or of the server of `tokenloom up` here.

`tokenloom up` sets STORES to a folder. A run notes its local store there, and the server shows the pages of stores that
are noted, and nothing else of them (tokenloom/server/store_pages.py).
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from tokenloom.storage.stores.local_files import read_regular
from tokenloom.storage.stores.store import Store

STORES = "TOKENLOOM_UP_STORES"  # the folder of the notes, a file for each store
STORES_FOLDER = "stores"  # its name, in the folder of `tokenloom up`
PREFIX = "/stores"


def page_url(store: Store, path: str) -> str | None:
    """Return the URL of a page of a store; None if there is none.

    Args:
        store: of a dataset.
        path: of the page, a report or the catalogue, relative to the folder that contains the dataset.
    """
    root = str(store.root).rpartition("/")[0]
    if root.startswith(("https://", "http://")):
        return f"{root}/{path}"
    folder = os.environ.get(STORES)
    if not (folder and store.is_local):
        return None
    from prefect.settings import PREFECT_API_URL  # late: `tokenloom up` imports this module before it sets the settings

    api = str(PREFECT_API_URL.value())
    return f"{api.removesuffix('/api')}{PREFIX}/{_noted(Path(folder), Path(store.root).parent)}/{path}"


def _noted(folder: Path, root: Path) -> str:
    """Note a store and return its key."""
    key = hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
    note = folder / key
    if not note.exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        note.write_bytes(os.fsencode(root))
    return key


def noted_stores(folder: Path) -> dict[str, Path]:
    """Return the stores that are noted in a folder, by key, sorted by path."""
    notes = folder.iterdir() if folder.is_dir() else ()
    found = {note.name: Path(os.fsdecode(read_regular(note))) for note in notes}
    return dict(sorted(found.items(), key=lambda item: item[1]))
