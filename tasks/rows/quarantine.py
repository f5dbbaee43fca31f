"""The quarantine: rows that were skipped for an error, listed by a partition, then by the version.

Each line has the first row, the number of rows from it on, and a reason code of our own. Messages of libraries are not
listed, so the bytes depend only on the input.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO, Any

import xxhash

from tokenloom.errors import BadRow, FormatError
from tokenloom.storage.formats.records import canonical_json, decode_record, parse_json
from tokenloom.storage.stores import local_files
from tokenloom.storage.stores.store import Store
from tokenloom.storage.work.records import QuarantineSummary, quarantine_path
from tokenloom.storage.work.work_files import reading_work_file


class QuarantineWriter(ExitStack):
    """Lists the skipped rows of a partition in a work file, which is created with the first of them.

    Attributes:
        num_bytes: length of the list so far.
        checksum: its xxh3_128.

    Args:
        store: the dataset's store.
        spill_name: the name of the partition's spills.
    """

    def __init__(self, store: Store, spill_name: str) -> None:
        super().__init__()
        self._store, self._path = store, quarantine_path(spill_name)
        self._file: IO[bytes] | None = None
        self.checksum = xxhash.xxh3_128()
        self.num_bytes = 0

    def add(self, rows: Iterable[BadRow]) -> None:
        """List rows; they come in the order of the file."""
        for row in rows:
            if self._file is None:
                self._file = self.enter_context(self._store.writing(self._path, durable=False))
            line = canonical_json({"num_rows": row.num_rows, "reason": row.reason, "row": row.row}) + b"\n"
            local_files.write_all(self._file, line)
            self.checksum.update(line)
            self.num_bytes += len(line)


def write_quarantine(store: Store, path: str, parts: Iterable[tuple[str, str, str, QuarantineSummary]]) -> str:
    """Write the list of a version from those of its partitions; return its SHA-256.

    Args:
        store: the dataset's store.
        path: where to write it.
        parts: (spill name, source, path of the input, summary) of every partition, in order.

    Raises WorkError if a partition's list is missing or damaged.
    """
    digest = hashlib.sha256()
    with store.writing(path) as file:
        for spill_name, source, input_path, summary in parts:
            for row in _read(store, spill_name, summary):
                line = canonical_json(row | {"path": input_path, "source": source}) + b"\n"
                digest.update(line)
                local_files.write_all(file, line)
    return digest.hexdigest()


def quarantine_reasons(store: Store, path: str) -> dict[str, dict[str, int]]:
    """Return how many rows the list of a version names, by source and reason; raises FormatError if it is damaged."""
    counts: dict[str, Counter[str]] = {}
    for row in _listed(store, path):
        counts.setdefault(row.source, Counter())[row.reason] += row.num_rows
    return {source: dict(sorted(reasons.items())) for source, reasons in counts.items()}


def quarantine_reason(store: Store, path: str, source: str, input_path: str, row: int) -> str | None:
    """Return why the list of a version names a row, None if it does not; raises FormatError if it is damaged."""
    for line in _listed(store, path):
        if (line.source, line.path) == (source, input_path) and line.row <= row < line.row + line.num_rows:
            return line.reason
    return None


@dataclass(frozen=True, slots=True)
class _ListedRow:
    """A line of the list of a version."""

    source: str
    path: str
    row: int
    num_rows: int
    reason: str


def _listed(store: Store, path: str) -> Iterator[_ListedRow]:
    """Yield the lines of the list of a version; raises FormatError if one is damaged."""
    place = store.place(path)
    return (decode_record(_ListedRow, parse_json(line, place), place) for line in _lines(store, path))


def _read(store: Store, spill_name: str, summary: QuarantineSummary) -> Iterator[dict[str, Any]]:
    """Yield the rows that a partition lists; raises WorkError if the list is missing or damaged."""
    if not summary.rows:
        return
    path, digest = quarantine_path(spill_name), xxhash.xxh3_128()
    with reading_work_file(store, path):
        for line in _lines(store, path):
            digest.update(line)
            yield _parse(line)
        if digest.hexdigest() != summary.xxh3_128:
            raise FormatError("its checksum does not match")


def _lines(store: Store, path: str) -> Iterator[bytes]:
    """Yield the lines of a file with their line ends; the last line may lack one."""
    rest = b""
    for block in store.blocks(path):
        *lines, rest = (rest + block).split(b"\n")
        yield from (line + b"\n" for line in lines)
    if rest:
        yield rest


def _parse(line: bytes) -> dict[str, Any]:
    try:
        row: dict[str, Any] = json.loads(line)
    except ValueError as error:
        raise FormatError("it does not hold valid JSON") from error
    return row
