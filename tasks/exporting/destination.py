"""Where an export goes: a folder or a URL that shows nothing half done.

A local export grows in a hidden folder beside its destination, .NAME.exporting, which is renamed at the end. On an
object store each file appears complete, and tokenloom-export.json last. `work/` holds what resuming needs meanwhile:
what is exported, and a record of each unit that is there.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tokenloom.errors import StoreError
from tokenloom.storage.stores import Store, open_store
from tokenloom.storage.stores.local_files import sync_folder
from tokenloom.storage.stores.store import TMP

SUMMARY = "tokenloom-export.json"
WORK = "work"
EXPORT = f"{WORK}/export.json"


class Destination:
    """The place of an export.

    Args:
        place: a local path or a URL, with or without a slash at its end.

    Raises StoreError if a local folder can't be replaced by another.
    """

    def __init__(self, place: str) -> None:
        self.final = open_store(place.rstrip("/") or place)
        self.store: Store = self.final
        self._root: Path | None = self.final.local("")
        if self._root is not None:
            if self._root.is_symlink() or os.path.ismount(self._root):  # the rename at the end can't replace them
                raise StoreError(f"{self._root}: a link or a mounted file system; give a new folder inside it")
            self.store = open_store(str(self._root.with_name(f".{self._root.name}.exporting")))

    def check_outside(self, dataset: Store) -> None:
        """Raise StoreError if the destination is in the folder of a dataset."""
        place, folder = (
            str(store.root if path is None else path.resolve())
            for store, path in ((self.final, self._root), (dataset, dataset.local("")))
        )
        if f"{place}/".startswith(f"{folder}/"):
            raise StoreError(f"{place}: in the folder of the dataset, where gc deletes files; give another destination")

    def check_free(self) -> None:
        """Raise StoreError if something else is at the destination."""
        names = self.final.names("")
        begun = self.store is self.final and self.final.exists(EXPORT)
        if (names or (self._root is not None and self._root.is_file())) and not begun:
            raise StoreError(
                f"{self.final.root}: it exists and is not this export; give another destination, or delete it"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Refuse a second export to the same local folder; on an object store two write the same bytes."""
        folder = self.store.local("")
        if folder is None:
            yield
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder, os.O_RDONLY)
        except OSError as error:
            raise StoreError(f"{folder}: can't be created: {error.strerror}; give another destination") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with the process
            if self.final.exists(SUMMARY):  # another process ended since it was looked for
                with suppress(OSError):
                    folder.rmdir()
                raise StoreError(f"{self.final.root}: another process has just exported there; run the command again")
            yield
        except BlockingIOError as error:
            raise StoreError(f"{self.final.root}: another process exports there now; wait for it") from error
        finally:
            os.close(descriptor)

    def clear_unfinished(self) -> None:
        """Delete what killed runs left of files: all that is local, on an object store what is older than a day."""
        if self._root is None:
            self.store.remove_stale_temporaries()
        else:
            self.store.remove_files(list(self.store.files_below(TMP)))

    def publish(self, summary: bytes) -> None:
        """Write the summary, delete the records of the work, and show a local export under its name."""
        self.store.replace(SUMMARY, summary)
        self.clear_work()
        if self._root is not None:
            staged = self.store.local("")
            try:
                os.rename(staged, self._root)  # type: ignore[arg-type]  # a local store has a path
                sync_folder(self._root.parent)
            except OSError as error:
                raise StoreError(f"{self._root}: {error.strerror}; what was exported is in {staged}") from error

    def clear_work(self) -> None:
        """Delete the records of the work, also those of an export that was killed after its summary."""
        self.store.remove_files(list(self.store.files_below(WORK)))
        self.store.remove_empty_folders(WORK)
