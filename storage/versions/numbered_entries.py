"""Logs of numbered entries: `00000001.json` and so on in one folder. Each is created exclusively and never changes.

The highest number counts. An entry says its number too, so that a file that was copied or renamed into a log is not an
entry: readers skip it, and `log`, `ls` and `verify` report it.
"""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from tokenloom.errors import FormatError, StoreError, message_of
from tokenloom.storage.formats.canonical import read_signed, sign_record
from tokenloom.storage.formats.records import Mismatch, decode_record
from tokenloom.storage.stores.store import Store

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    class Entry(DataclassInstance, Protocol):
        """A record that says its number."""

        @property
        def number(self) -> int:
            """Counts from 1."""
            raise NotImplementedError


E = TypeVar("E", bound="Entry")
_ENTRY = re.compile(r"(?!0{8})[0-9]{8}\.json\Z")
_LAST = 10**8 - 1  # eight digits


class StrayEntry(FormatError):
    """A file is named as an entry of a log and says another number."""


class EntryLog(Generic[E]):
    """The log in one folder of a dataset.

    Args:
        store: the dataset's store.
        folder: its path in it.
        kind: the record of its entries.
        check: raises Mismatch if a field does not have a value that it may have.
    """

    def __init__(self, store: Store, folder: str, kind: type[E], check: Callable[[E], None]) -> None:
        self._store, self._folder, self._kind, self._check = store, folder, kind, check

    def path(self, number: int) -> str:
        """Return the path of entry `number`, relative to the dataset's folder."""
        return f"{self._folder}/{number:08d}.json"

    def numbers(self) -> list[int]:
        """Return the sorted numbers of the files that are named as entries."""
        return sorted(int(name[:8]) for name in self._store.names(self._folder) if _ENTRY.match(name))

    def newest(self) -> E | None:
        """Return the entry that counts, None if there is none; raises FormatError if it is damaged."""
        for number in reversed(self.numbers()):
            try:
                return self.read(number)
            except StrayEntry:
                continue
        return None

    def newest_number(self) -> int:
        """Return the number of the entry that counts, 0 if there is none; raises FormatError if it is damaged."""
        newest = self.newest()
        return newest.number if newest else 0

    def read(self, number: int, data: bytes | None = None) -> E:
        """Return entry `number`, from the bytes of its file if they were read; raises FormatError if it is damaged."""
        place = self._store.place(self.path(number))
        try:
            data = self._store.read(self.path(number)) if data is None else data
        except FileNotFoundError as error:
            raise FormatError(f"{place}: an entry of the log is missing; restore it") from error
        except StoreError as error:
            if not self._store.is_damage(error):
                raise
            raise FormatError(str(error)) from error  # a folder or a pipe in its place, for instance
        value = read_signed(data, place)
        if (said := value.get("number", number)) != number:
            raise StrayEntry(f"{place}: it is not an entry of this log, as it says number {said!r:.20}; remove it")
        try:
            entry = decode_record(self._kind, value)
            self._check(entry)
        except Mismatch as error:
            raise FormatError(f"{place}: {message_of(error)}") from error
        return entry

    def read_all(self) -> tuple[list[E], dict[str, FormatError]]:
        """Return the entries that can be read, oldest first, and by path what is wrong with the log, gaps included.

        Raises StoreError if the store does not answer.
        """
        numbers = self.numbers()
        entries: list[E] = []
        problems: dict[str, FormatError] = {}
        last = 0
        for number, data in zip(numbers, self._store.read_all([self.path(number) for number in numbers]), strict=True):
            try:
                entries.append(self.read(number, data or None))
            except StrayEntry as error:
                problems[self.path(number)] = error
                continue
            except FormatError as error:
                problems[self.path(number)] = error
            if number > last + 1:
                more = f", and those up to {self.path(number - 1)}" if number > last + 2 else ""
                path = self.path(last + 1)
                message = f"{self._store.place(path)}: an entry of the log is missing{more}; restore it"
                problems[path] = FormatError(message)
            last = number
        return entries, problems

    def entries(self) -> list[E]:
        """Return all entries, oldest first; raises FormatError if one is damaged or missing."""
        entries, problems = self.read_all()
        for problem in problems.values():
            if not isinstance(problem, StrayEntry):
                raise problem
        return entries

    def append(self, entry: E) -> E:
        """Create an entry, whose number the caller takes for the next one, and see that it counts; return it.

        Raises:
            FileExistsError: another process was first.
            FormatError: a file that is not an entry is in its place, or no number is left.
            StoreError: it can't be written, or is not there when it is read back.
        """
        path = self.path(entry.number)
        if entry.number > _LAST:
            place = self._store.place(self.path(_LAST))
            raise FormatError(f"{place}: no number is left after it; remove it if nobody moved anything that often")
        try:
            self._store.create(path, sign_record(entry))
        except FileExistsError:
            if self.newest_number() < entry.number:
                message = "it is in the place of the next entry, and is not an entry of this log; remove it"
                raise FormatError(f"{self._store.place(path)}: {message}") from None
            raise
        if self.newest_number() < entry.number:
            raise StoreError(
                f"{self._store.place(path)}: it was written, and is not there when the log is read back; "
                "check the store, and run the same command again"
            )
        return entry


def now() -> str:
    """Return the time of this machine for people: ISO 8601, in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def user() -> str:
    """Return the name of this user, for people."""
    import getpass  # a reader does not need it

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user often has no name
        return f"uid {os.getuid()}"
