"""Read and write work files, which may be missing or damaged at any time: the build then writes them again.

`read_work_record` raises a WorkError that says which of the two it is; `find_work_record` returns None for both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tokenloom.errors import FormatError, StoreError, WorkError
from tokenloom.storage.formats.canonical import read_signed, sign
from tokenloom.storage.formats.records import Mismatch, Record, decode_record, fields_of
from tokenloom.storage.stores.store import Store


@contextmanager
def reading_work_file(store: Store, path: str, spill: str | None = None) -> Iterator[None]:
    """Raise WorkError if the block finds a work file missing or damaged.

    Args:
        store: the dataset's store.
        path: of the file, relative to the dataset's folder.
        spill: name of the spills to encode again, if the file belongs to a partition.
    """
    place = store.place(path)
    try:
        yield
    except FileNotFoundError as error:
        raise WorkError(f"{place}: the file is missing", spill) from error
    except FormatError as error:
        raise WorkError(f"{place}: the file is damaged: {str(error).removeprefix(f'{place}: ')}", spill) from error
    except StoreError as error:
        if store.is_damage(error):
            raise WorkError(f"{place}: the file is damaged: {str(error).removeprefix(f'{place}: ')}", spill) from error
        raise


def read_work_record(store: Store, path: str, kind: type[Record], spill: str | None = None) -> Record:
    """Return the record in a work file; raises WorkError if the file is missing or damaged."""
    with reading_work_file(store, path, spill):
        return parse_work_record(store.read(path), store.place(path), kind)


def find_work_record(store: Store, path: str, kind: type[Record]) -> Record | None:
    """Return the record in a work file; None if the file is missing or damaged."""
    try:
        return read_work_record(store, path, kind)
    except WorkError:
        return None


def parse_work_record(data: bytes, place: str, kind: type[Record]) -> Record:
    """Return the record in the bytes of the work file at `place`; raises FormatError if they are damaged."""
    try:
        return decode_record(kind, read_signed(data, place))
    except Mismatch as error:
        raise FormatError(f"{place}: {error}") from error


def write_work_record(store: Store, path: str, record: Record) -> None:
    """Write a record as a work file; it need not survive a loss of power."""
    store.replace(path, sign(fields_of(record)), durable=False)
