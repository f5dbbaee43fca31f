"""The quarantine: rows that were skipped for an error, listed by a partition, then by the version.

Each line has the first row, the number of rows from it on, and a reason code of our own. Messages of libraries are not
listed, so the bytes depend only on the input.
"""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO, Any, cast

import xxhash

from tokenloom.errors import BadRow, FormatError
from tokenloom.storage.formats.records import canonical_json, decode_record, parse_json
from tokenloom.storage.formats.statistics import ChatCounts, EncodedCounts
from tokenloom.storage.stores import local_files
from tokenloom.storage.stores.store import Store, StoreFile
from tokenloom.storage.work.records import (
    PartitionRecord,
    QuarantineSummary,
    SpillCounts,
    quarantine_path,
    reading_work_file,
)
from tokenloom.tasks.sources import Rows

_MESSAGE_CHARS = 500  # how much of the first bad row's message is kept for a message about many


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
        self._store = store
        self._path = quarantine_path(spill_name)
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
    path = quarantine_path(spill_name)
    digest = xxhash.xxh3_128()
    with reading_work_file(store, path):
        for line in _lines(store, path):
            digest.update(line)
            yield cast(dict[str, Any], parse_json(line, path))
        if digest.hexdigest() != summary.xxh3_128:
            raise FormatError("its checksum does not match")


def _lines(store: Store, path: str) -> Iterator[bytes]:
    """Yield the lines of a file with their line ends; the last line may lack one."""
    with io.BufferedReader(StoreFile(store, path)) as file:
        yield from file


class PartitionTally:
    """Counts the rows of a partition: those read, filtered and not read, and the bad ones by reason.

    Attributes:
        num_read: rows so far.
    """

    def __init__(self) -> None:
        self.num_read = self._num_filtered = self._num_not_read = self._text_bytes = 0
        self._unseen: tuple[str, ...] = ()
        self._reasons: Counter[str] = Counter()
        self._first = ""
        self._chat: ChatCounts | None = None

    def add(self, rows: Rows) -> None:
        """Count a batch of documents; the batches come in the order of the file."""
        self.num_read += rows.num_read
        self._num_filtered += rows.num_filtered
        self._num_not_read += rows.num_not_read
        self._unseen = rows.missing_keys
        if rows.num_without_target:
            self.add_encoded(0, ChatCounts(dropped=rows.num_without_target))
        for bad in rows.bad:
            self._reasons[bad.reason] += bad.num_rows
            self._first = self._first or str(bad)[:_MESSAGE_CHARS]

    def add_encoded(self, num_bytes: int, chat: ChatCounts | None) -> None:
        """Count documents that were encoded: the bytes of their texts in UTF-8, and the counts of conversations."""
        self._text_bytes += num_bytes
        if chat is not None:
            self._chat = chat + (self._chat or ChatCounts())

    def record(self, spills: list[SpillCounts], list_bytes: int = 0, list_xxh3_128: str = "") -> PartitionRecord:
        """Return the record of the partition.

        Args:
            spills: its spills.
            list_bytes: length of its list of skipped rows, 0 if none was written.
            list_xxh3_128: checksum of that list.
        """
        return PartitionRecord(
            encoded=EncodedCounts(
                documents=sum(sum(spill.documents) for spill in spills),
                tokens=sum(sum(spill.tokens) for spill in spills),
                bytes=self._text_bytes,
                chat=self._chat,
                rows=self.num_read,
                filtered=self._num_filtered,
            ),
            not_read=self._num_not_read,
            unseen=list(self._unseen),
            spills=spills,
            quarantine=QuarantineSummary(
                bytes=list_bytes,
                rows=self._reasons.total(),
                xxh3_128=list_xxh3_128,
                reasons=dict(sorted(self._reasons.items())),
                first=self._first,
            ),
        )
