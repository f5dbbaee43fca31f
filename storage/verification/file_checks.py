"""The check of one file of a version, which is read once; shard_checks.py looks inside shards in the same pass."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

import pyarrow as pa

from tokenloom.errors import FormatError, message_of
from tokenloom.storage.formats.shard_entries import FileEntry, ShardEntry
from tokenloom.storage.stores.local_errors import translate_temporary_errors
from tokenloom.storage.stores.local_files import open_regular
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import version_path
from tokenloom.wording import counted

_SPOOLED_BYTES = 2**26  # a remote file of more bytes goes to a temporary file, not into memory
NOT_SHA256 = "its SHA-256 is not that of the manifest"

Taker = Callable[[int, memoryview], None]  # position of a block in its file, the block


@dataclass(frozen=True)
class Damage:
    """A damaged file: its path relative to the dataset's folder, its problem, and a next step that is not the usual."""

    file: str
    what: str
    next_step: str | None = None


def check_file(store: Store, path: str, sha256: str, take: Taker) -> list[str]:
    """Read a listed file that is not a shard once; return its problems."""
    problems: list[str] = []
    with collecting_problems(store, path, problems):
        if read_once(store, path, take)[1] != sha256:
            problems.append(NOT_SHA256)
    return problems


def check_quarantine(store: Store, path: str, sha256: str, num_rows: int, take: Taker) -> list[str]:
    """Read the list of skipped rows once; return its problems, such as a count other than `num_rows`."""
    problems: list[str] = []
    with collecting_problems(store, path, problems), checked_file(store, path, sha256, take) as file:
        if file is None:
            return [NOT_SHA256]
        found = sum(json.loads(line)["num_rows"] for line in file)
        if found != num_rows:
            problems.append(f"it lists {counted(found, 'row')}, the manifest says {num_rows:,}")
    return problems


def read_once(store: Store, path: str, take: Taker) -> tuple[int, str]:
    """Call `take` with every block of a file; return the file's length and SHA-256.

    Raises:
        FileNotFoundError: the file is missing.
        StoreError: it can't be read.
    """
    digest, position = hashlib.sha256(), 0
    for block in store.blocks(path):
        digest.update(block)
        take(position, block)
        position += len(block)
    return position, digest.hexdigest()


def is_as_listed(store: Store, version: str, entry: ShardEntry) -> bool:
    """Read the files of a shard once; return whether they are those that its entry lists.

    Raises StoreError if the store does not answer.
    """
    try:
        return all(
            FileEntry(*read_once(store, version_path(version, name), lambda position, block: None)) == file
            for name, file in entry.listed.items()
        )
    except OSError as error:
        raise_unless_damage(store, error)
        return False


@contextmanager
def checked_file(store: Store, path: str, sha256: str, take: Taker) -> Iterator[IO[bytes] | None]:
    """Read a file once; yield it, open at its beginning, if its SHA-256 is right, else None."""
    if (local := store.local(path)) is not None:
        if read_once(store, path, take)[1] != sha256:
            yield None
            return
        with open_regular(local) as file:
            yield file
        return
    with tempfile.SpooledTemporaryFile(_SPOOLED_BYTES) as copy:

        def keep(position: int, block: memoryview) -> None:
            with translate_temporary_errors():
                copy.write(block)
            take(position, block)

        found = read_once(store, path, keep)[1]
        copy.seek(0)
        yield copy if found == sha256 else None


@contextmanager
def collecting_problems(store: Store, path: str, problems: list[str]) -> Iterator[None]:
    """Add to `problems` if the block finds a file missing, or can't read or parse it; other errors are raised."""
    try:
        yield
    except FileNotFoundError:
        problems.append("missing")
    except MemoryError:  # Arrow's is an ArrowException too
        raise
    except (pa.ArrowException, FormatError, ValueError, KeyError, TypeError, RecursionError) as error:
        problems.append(bare_message(error, store.place(path)))
    except OSError as error:
        raise_unless_damage(store, error)
        problems.append(bare_message(error, store.place(path)))


def raise_unless_damage(store: Store, error: Exception) -> None:
    """Raise an OSError that says nothing about the file: a store that does not answer, a missing permission."""
    if isinstance(error, OSError) and not store.is_damage(error):
        raise error


def bare_message(error: Exception, place: str) -> str:
    """Return an error's message without the place that it begins with, for a list that names the file anyway."""
    return message_of(error).removeprefix(f"{place}: ")
