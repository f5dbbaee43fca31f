"""Read two versions side by side, so that all documents of a text, in A and in B, come together.

Where a key depends on nothing but seed and content, and the seeds are equal, the tables of both versions have the same
order. One pass merges them, and holds a batch or two of each split of each version.

Elsewhere (other seeds, or duplicates are kept) the order differs. One pass over each table writes its rows into a
temporary file, divided by content; then each part is read alone. Memory is bounded by the size of a part, and grows
only with the number of copies of the most frequent text.
"""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import IO

import numpy as np

from tokenloom.errors import StoreError
from tokenloom.storage.comparison.rows import ROW, Documents, Rows
from tokenloom.storage.formats.arrays import Int64s
from tokenloom.wording import shown_bytes

_PART_ROWS = 2**19  # rows of both versions in a part, about 25 MB
_CHUNK_ROWS = 2**19  # rows that are sorted and written at once

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Advance = Callable[[int], None]


def have_one_order(a: Documents, b: Documents) -> bool:
    """Return whether equal texts have equal keys in both versions."""
    return a.key_seed is not None and a.key_seed == b.key_seed


def by_key(a: Documents, b: Documents, advance: Advance) -> Iterator[tuple[Rows, Rows]]:
    """Yield the documents of A and of B key range by key range; the versions must have one order.

    Args:
        a: the documents of one version.
        b: those of the other.
        advance: called with the number of rows that were read.
    """
    streams = [_Stream(side.batches(i), advance) for side in (a, b) for i in range(len(side.splits))]
    num_a = len(a.splits)
    while any(not stream.has_ended for stream in streams):
        end = min(stream.last_key for stream in streams if not stream.has_ended)
        taken = [stream.take_below(end) for stream in streams]
        yield _joined(taken[:num_a]), _joined(taken[num_a:])
        for stream in streams:
            if not stream.has_ended and stream.last_key == end:
                stream.read_more()
    rest = [stream.pending for stream in streams]
    yield _joined(rest[:num_a]), _joined(rest[num_a:])


class _Stream:
    """The documents of a split: those that were read and not yet taken are `pending`."""

    def __init__(self, batches: Iterator[Rows], advance: Advance) -> None:
        self._batches, self._advance = batches, advance
        self.pending, self.has_ended = _NO_ROWS, False
        self.read_more()

    @property
    def last_key(self) -> int:
        """The last key that was read."""
        return int(self.pending["key"][-1])

    def take_below(self, end: int) -> Rows:
        """Take the pending documents with a key below `end`; a later batch may have more of the key `end`."""
        count = int(np.searchsorted(self.pending["key"], np.uint64(end)))
        taken, self.pending = self.pending[:count], self.pending[count:]
        return taken

    def read_more(self) -> None:
        """Read a batch more, if there is one."""
        batch = next(self._batches, None)
        if batch is None:
            self.has_ended = True
        else:
            self._advance(len(batch))
            self.pending = np.concatenate((self.pending, batch))


def by_content(a: Documents, b: Documents, advance: Advance) -> Iterator[tuple[Rows, Rows]]:
    """Yield the documents of A and of B part by part of the contents; arguments as by_key.

    Raises StoreError if the disk has no room for the temporary file: 56 bytes a document.
    """
    num_rows = a.num_documents + b.num_documents
    num_parts = max(1, -(-num_rows // _PART_ROWS))
    with tempfile.TemporaryFile(prefix="tokenloom-diff-") as file:
        try:
            chunks = [list(_write_chunks(file, side, num_parts, advance)) for side in (a, b)]
            file.flush()
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise StoreError(
                f"comparing these versions needs {shown_bytes(num_rows * ROW.itemsize)} for a temporary file; "
                f"{tempfile.gettempdir()}: {error.strerror}; set TMPDIR to another folder"
            ) from error
        for part in range(num_parts):
            rows_a, rows_b = (
                _joined([_read_rows(file, offsets[part : part + 2]) for offsets in each]) for each in chunks
            )
            yield rows_a, rows_b


def _write_chunks(file: IO[bytes], side: Documents, num_parts: int, advance: Advance) -> Iterator[Int64s]:
    """Write the documents of a version, chunks of them sorted by part; yield where the parts of each chunk start.

    Each item is (num_parts + 1,), counted in rows from the start of the file.
    """
    for rows in _chunks(side, advance):
        parts = _parts(rows, num_parts)
        start = file.tell() // ROW.itemsize
        file.write(rows[np.argsort(parts, kind="stable")].data)
        yield start + np.concatenate(([0], np.cumsum(np.bincount(parts, minlength=num_parts))))


def _chunks(side: Documents, advance: Advance) -> Iterator[Rows]:
    """Yield all documents of a version, about _CHUNK_ROWS at a time."""
    pending: list[Rows] = []
    for split in range(len(side.splits)):
        for batch in side.batches(split):
            advance(len(batch))
            pending.append(batch)
            if sum(map(len, pending)) >= _CHUNK_ROWS:
                yield _joined(pending)
                pending = []
    yield _joined(pending)


def _parts(rows: Rows, num_parts: int) -> Int64s:
    """Return the part of each row: equal contents have equal parts, which are of about equal size."""
    top = (rows["content"][:, 0] >> np.uint64(32)).astype(np.int64)  # in [0, 2**32)
    return top * num_parts >> 32


def _read_rows(file: IO[bytes], bounds: Int64s) -> Rows:
    start, end = bounds.tolist()
    file.seek(start * ROW.itemsize)
    return np.frombuffer(file.read((end - start) * ROW.itemsize), ROW)


_NO_ROWS: Rows = np.empty(0, ROW)


def _joined(parts: Sequence[Rows]) -> Rows:
    return np.concatenate(parts) if parts else _NO_ROWS
