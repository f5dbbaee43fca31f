"""The URLs of a store's pages: those of a store that a web server has, or of the server of `tokenloom up` here.

`tokenloom up` sets STORES to a folder. A run notes its local store there, and the server shows the pages of stores that
are noted, and nothing else of them (tokenloom/server/app.py).
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from tokenloom.storage.stores.local_files import read_regular, writing_atomically
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
    folder = os.environ.get(STORES)
    if not (folder and store.is_local):
        return None
    from prefect.settings import PREFECT_API_URL  # late: `tokenloom up` imports this module before it sets the settings

    api = str(PREFECT_API_URL.value())
    return f"{api.removesuffix('/api')}{PREFIX}/{_noted(Path(folder), Path(store.root).parent)}/{path}"


def _noted(folder: Path, root: Path) -> str:
    """Note a store and return its key."""
    path = os.fsencode(root)
    key = _key(path)
    if _path_in(folder / key) != path:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with writing_atomically(folder / key, durable=True) as file:
            file.write(path)
    return key


def noted_stores(folder: Path) -> dict[str, Path]:
    """Return the stores that are noted in a folder, by key, sorted by path; a note that is not whole is none."""
    paths = {note.name: _path_in(note) for note in (folder.iterdir() if folder.is_dir() else ())}
    found = {key: Path(os.fsdecode(path)) for key, path in paths.items() if path is not None and _key(path) == key}
    return dict(sorted(found.items(), key=lambda item: item[1]))


def _key(path: bytes) -> str:
    return hashlib.sha256(path).hexdigest()[:16]


def _path_in(note: Path) -> bytes | None:
    try:
        return read_regular(note)
    except OSError:
        return None
