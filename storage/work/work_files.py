"""Read and write work files. One that a build needs and finds missing or damaged is deleted, and ends the build."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from tokenloom.errors import FormatError, StoreError, WorkError
from tokenloom.storage.formats.records import Record, read_record, sign
from tokenloom.storage.stores.store import Store


@contextmanager
def reading_work_file(store: Store, path: str) -> Iterator[None]:
    """Delete a work file that the block finds damaged, and raise WorkError, also for one that is missing.

    Args:
        store: the dataset's store.
        path: the file's path, relative to the dataset's folder.
    """
    try:
        yield
    except (FileNotFoundError, FormatError, StoreError) as error:
        if isinstance(error, StoreError) and not store.is_damage(error):
            raise
        raise damaged(store, path) from error


def damaged(store: Store, path: str) -> WorkError:
    """Delete a work file, and return the error that names it and ends the build."""
    store.remove(path)
    return WorkError(store.place(path))


def find_work_record(store: Store, path: str, kind: type[Record]) -> Record | None:
    """Return the record in a work file; None if the file is missing or damaged."""
    return find_work_records(store, [path], kind).get(path)


def find_work_records(store: Store, paths: Sequence[str], kind: type[Record]) -> dict[str, Record]:
    """Return the records in work files that are there and undamaged, by path."""
    records = {}
    for path, data in zip(paths, store.read_all(paths), strict=True):
        if data is not None:
            with suppress(FormatError):
                records[path] = read_record(data, path, kind)
    return records


def write_work_record(store: Store, path: str, record: Record) -> None:
    """Write a record as a work file; it need not survive a loss of power."""
    store.replace(path, sign(record), durable=False)
