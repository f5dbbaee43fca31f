"""What every kind of source offers: cut a file into partitions, and read one in batches of rows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import IO, Protocol

import fsspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokenloom.errors import InputError

PARTITION_BYTES = 64_000_000  # of text, about; part of every spill's name through the cut itself
BATCH_BYTES = 4_000_000  # of text, about, in memory at a time


@dataclass(frozen=True)
class PartitionRange:
    """A part of one file: row groups or bytes [start, end).

    `num_bytes` is its text or file bytes, for balancing work; `num_rows` is known for formats that say it.
    """

    start: int
    end: int
    num_bytes: int
    num_rows: int | None


@dataclass(frozen=True)
class Rows:
    """A batch of n rows: texts (n,) large_string, null where there is none; rows (n,) uint64 in the file."""

    texts: pa.Array
    rows: NDArray[np.uint64]


class SourceReader(Protocol):
    """Reads the files of one source. Every error is an InputError that names file and row group or byte."""

    def partitions(self, url: str) -> list[PartitionRange]:
        """Cut a file into partitions of about PARTITION_BYTES of text; a function of the file alone."""

    def read(self, url: str, start: int, end: int) -> Iterator[Rows]:
        """Yield the rows of a partition in order, in batches of about BATCH_BYTES."""

    def locate(self, url: str, rows: Sequence[int]) -> list[tuple[int, int]]:
        """Return ranges [start, end) for `read` that hold `rows` (ascending) and as little else as can be."""


def open_file(url: str) -> AbstractContextManager[IO[bytes]]:
    """Open a local path or a URL for reading; "::" in a local name is no chain of file systems."""
    if "://" not in url:
        return open(url, "rb")  # noqa: PTH123  (a str path, as fsspec gives it; the caller closes it)
    opened: AbstractContextManager[IO[bytes]] = fsspec.open(url, "rb")
    return opened


@contextmanager
def open_input(url: str) -> Iterator[IO[bytes]]:
    """Open an input file for reading; raises InputError if it is missing or can't be read."""
    try:
        with open_file(url) as file:
            yield file
    except FileNotFoundError as error:
        raise InputError(f"{url}: the file is gone; it was there when the build was planned; build again") from error
    except OSError as error:
        raise InputError(f"{url}: can't be read: {error.strerror or error}; check the file") from error


def input_bytes(url: str) -> int:
    """Return the length of an input file in bytes; raises InputError if it can't be read."""
    try:
        if "://" not in url:
            return os.stat(url).st_size
        filesystem, path = fsspec.core.url_to_fs(url)
        return int(filesystem.size(path))
    except OSError as error:
        raise InputError(f"{url}: can't be read: {error.strerror or error}; check the file") from error


def large_strings(texts: Sequence[str | None], rows: Sequence[int], url: str) -> pa.Array:
    """Return texts as (n,) large_string; raises InputError that names the row of a text that is no UTF-8.

    Args:
        texts: of n rows, None where a row has none.
        rows: their numbers in the file, for the message.
        url: the file, for the message.
    """
    try:
        return pa.array(texts, pa.large_string())
    except UnicodeEncodeError:
        for text, row in zip(texts, rows, strict=True):
            if text is not None and any("\ud800" <= character <= "\udfff" for character in text):
                raise InputError(
                    f"{url}, row {row}: its text holds a lone surrogate, which UTF-8 can't say; mend the row"
                ) from None
        raise
