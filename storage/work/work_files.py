"""Read and write work files, which may be missing or damaged at any time: the build then writes them again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from tokenloom.errors import FormatError, StoreError, WorkError
from tokenloom.storage.formats.canonical import read_signed_record, sign_record
from tokenloom.storage.formats.records import Record
from tokenloom.storage.stores.store import Store


@contextmanager
def reading_work_file(store: Store, path: str, spill_name: str | None = None) -> Iterator[None]:
    """Raise WorkError if the block finds a work file missing or damaged.

    Args:
        store: the dataset's store.
        path: the file's path, relative to the dataset's folder.
        spill_name: the name of the spills to encode again, if the file belongs to a partition.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise WorkError(f"{store.place(path)}: the file is missing", spill_name) from error
    except (FormatError, StoreError) as error:
        if isinstance(error, StoreError) and not store.is_damage(error):
            raise
        place = store.place(path)
        reason = str(error).removeprefix(f"{place}: ")
        raise WorkError(f"{place}: the file is damaged: {reason}", spill_name) from error


def find_work_record(store: Store, path: str, kind: type[Record]) -> Record | None:
    """Return the record in a work file; None if the file is missing or damaged."""
    try:
        with reading_work_file(store, path):
            return read_signed_record(store.read(path), store.place(path), kind)
    except WorkError:
        return None


def find_work_records(store: Store, paths: Sequence[str], kind: type[Record]) -> dict[str, Record]:
    """Return the records in work files that are there and undamaged, by path."""
    records = {}
    for path, data in zip(paths, store.read_all(paths), strict=True):
        if data is not None:
            with suppress(FormatError):
                records[path] = read_signed_record(data, path, kind)
    return records


def write_work_record(store: Store, path: str, record: Record) -> None:
    """Write a record as a work file; it need not survive a loss of power."""
    store.replace(path, sign_record(record), durable=False)
