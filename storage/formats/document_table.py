"""The document table `.docs` beside a shard: where each of its documents comes from.

Uncompressed Arrow IPC, one row for each document in shard order, in batches of a fixed number of rows, so that the
bytes do not depend on how the shuffle cuts its work. A reader takes a batch at a time, and only its keys while a
content is searched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from typing import NamedTuple, NotRequired, TypedDict

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokenloom.errors import FormatError, StoreError, message_of
from tokenloom.storage.formats.arrays import AnyArray, UInt64s
from tokenloom.storage.formats.keys import content_digits
from tokenloom.storage.formats.manifest import InputEntry
from tokenloom.storage.stores.store import BLOCK_BYTES, Store, StoreFile
from tokenloom.wording import counted

SCHEMA = pa.schema(
    [
        pa.field("start", pa.uint64(), nullable=False),  # first token in the shard
        pa.field("num_tokens", pa.uint32(), nullable=False),
        pa.field("input", pa.uint32(), nullable=False),  # index into inputs.json
        pa.field("row", pa.uint64(), nullable=False),  # row in the file; in a file of lines, the byte offset
        pa.field("content", pa.binary(16), nullable=False),  # xxh3_128 of the UTF-8 text
        pa.field("key", pa.uint64(), nullable=False),
    ]
)
BATCH_ROWS = 65_536
_KEY = SCHEMA.get_field_index("key")


def table_schema(has_classes: bool, has_ids: bool) -> pa.Schema:
    """Return the columns of a version's tables: `classes` if it has masks, `id` if one of its sources names ids."""
    fields = [pa.field("classes", pa.uint64(), nullable=False)] * has_classes  # a hash of those of its tokens
    fields += [pa.field("id", pa.string())] * has_ids  # null where a source names none
    return pa.schema([*SCHEMA, *fields])


_SCHEMAS = [table_schema(has_classes, has_ids) for has_classes in (False, True) for has_ids in (False, True)]


def _values(batch: pa.RecordBatch, name: str) -> AnyArray:
    """Return a column of a document table without nulls: (n,), or (n, 2) halves of `content`, all little-endian.

    Arrow's own conversion imports pandas, which takes as long as reading a few hundred megabytes.
    """
    column = batch[name]
    dtype = np.dtype(">u8") if name == "content" else np.dtype(column.type.to_pandas_dtype()).newbyteorder("<")
    values = np.frombuffer(column.buffers()[1], dtype)
    if name == "content":
        values = values.astype("<u8").reshape(-1, 2)
    return values[column.offset : column.offset + len(column)]


@contextmanager
def _naming_damage(place: str) -> Iterator[None]:
    try:
        yield
    except StoreError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise FormatError(f"{place}: not a readable document table ({message_of(error)}); restore it") from error


class Origin(TypedDict):
    """Where a document comes from: a row of an input, and its content, 32 hexadecimal digits."""

    source: str
    path: str
    row: int
    content: str
    id: NotRequired[str | None]  # if a source of the version names ids
    copy: NotRequired[int]  # if the version repeats documents: its number among its copies, 0 for the first
    marks: NotRequired[dict[str, object]]  # that `trace` and `where` find


class DocumentColumns(NamedTuple):
    """Rows of a document table as columns, (n,) each, `content` (n, 2): high and low half; `ids` are strings.

    `classes` are hashes of those of the tokens, None in a version without masks.
    """

    start: UInt64s
    num_tokens: NDArray[np.uint32]
    input: NDArray[np.uint32]
    row: UInt64s
    content: UInt64s
    key: UInt64s
    classes: UInt64s | None
    ids: pa.Array | None

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return len(self.start)

    def slice(self, start: int, end: int) -> DocumentColumns:
        """Return the rows [start, end)."""
        return DocumentColumns._make(None if column is None else column[start:end] for column in self)

    def first(self, count: int) -> DocumentColumns:
        """Copy the first rows, without `ids` and `classes`, so that the others can be freed."""
        return DocumentColumns._make([*(np.copy(column[:count]) for column in self[:6]), None, None])

    def origin(self, i: int, inputs: Sequence[InputEntry]) -> Origin:
        """Return where document i comes from; `inputs` are those of its version."""
        entry = inputs[int(self.input[i])]
        found: Origin = {
            "source": entry.source,
            "path": entry.path,
            "row": int(self.row[i]),
            "content": content_digits(self.content[i]),
        }
        if self.ids is not None:
            found["id"] = self.ids[i].as_py()
        return found


class DocumentTable:
    """A document table, of which only the batches that are asked for are read; no file stays open.

    Args:
        store: the store that holds it.
        path: its path in the store.
        num_rows: the documents of its shard, as the manifest lists them.
        num_inputs: how many inputs its version has.
        block_bytes: to read at once.

    Raises:
        FileNotFoundError: there is no such file.
        FormatError: it is damaged, or has other columns; also later, when a batch is read.
    """

    def __init__(self, store: Store, path: str, num_rows: int, num_inputs: int, block_bytes: int = BLOCK_BYTES) -> None:
        self.num_rows, self._num_inputs, self.place = num_rows, num_inputs, store.place(path)
        self._file = StoreFile(store, path, block_bytes)
        with _naming_damage(self.place):
            self._reader = pa.ipc.open_file(self._file)
            if self._reader.schema not in _SCHEMAS:
                raise pa.ArrowInvalid("its columns are not those of a document table")
        if self._reader.num_record_batches != -(-num_rows // BATCH_ROWS):
            raise self._not_of_its_shard()

    def batches(self) -> Iterator[DocumentColumns]:
        """Yield all rows in order, up to 65,536 at a time."""
        for index in range(self._reader.num_record_batches):
            yield self._read_batch(index)

    def rows(self, start: int, end: int) -> DocumentColumns:
        """Return the rows [start, end), which must exist; meant for a few batches at most."""
        first, last = start // BATCH_ROWS, max(start, end - 1) // BATCH_ROWS
        parts = [
            self._batch(index).slice(max(0, start - index * BATCH_ROWS), min(BATCH_ROWS, end - index * BATCH_ROWS))
            for index in range(first, last + 1)
        ]
        return parts[0] if len(parts) == 1 else _join(parts)

    def find(self, key: int, content: UInt64s) -> range:
        """Return the rows of a content, a range [start, end), by a binary search for its key.

        Args:
            key: of the content, as order_keys computes it.
            content: (2,) its high and low half.
        """
        start, end = self.first_row(key), self.first_row(key + 1)
        if start == end:
            return range(start, start)
        found = np.flatnonzero((self.rows(start, end).content == content).all(axis=1))  # sorted by content within a key
        return range(start + int(found[0]), start + int(found[-1]) + 1) if len(found) else range(start, start)

    def first_row(self, key: int) -> int:
        """Return the first row whose key is at least `key`; num_rows if there is none."""
        low, high = 0, self._reader.num_record_batches
        while low < high:  # the first batch whose last key is at least `key`
            middle = (low + high) // 2
            low, high = (low, middle) if int(self._batch_keys(middle)[-1]) >= key else (middle + 1, high)
        if low == self._reader.num_record_batches:
            return self.num_rows
        return low * BATCH_ROWS + int(np.searchsorted(self._batch_keys(low), np.uint64(key)))

    @cached_property
    def _keys(self) -> pa.ipc.RecordBatchFileReader:
        with _naming_damage(self.place):
            return pa.ipc.open_file(self._file, options=pa.ipc.IpcReadOptions(included_fields=[_KEY]))

    @cached_property
    def _batch(self) -> Callable[[int], DocumentColumns]:
        # made on first use: its cache refers back to the table, which then waits for the garbage collector
        return lru_cache(2)(self._read_batch)

    def _batch_keys(self, index: int) -> UInt64s:
        return _values(self._checked_batch(self._keys, index), "key")

    def _read_batch(self, index: int) -> DocumentColumns:
        batch = self._checked_batch(self._reader, index)
        columns = {name: _values(batch, name) for name in SCHEMA.names}
        if int(columns["input"].max()) >= self._num_inputs:
            raise FormatError(f"{self.place}: its documents name inputs that do not exist; restore it")
        names = batch.schema.names
        classes = _values(batch, "classes") if "classes" in names else None
        return DocumentColumns(**columns, classes=classes, ids=batch["id"] if "id" in names else None)

    def _checked_batch(self, reader: pa.ipc.RecordBatchFileReader, index: int) -> pa.RecordBatch:
        with _naming_damage(self.place):
            batch = reader.get_batch(index)
            batch.validate(full=True)  # without it, a conversion may read outside of the file
            if any(batch[field.name].null_count for field in batch.schema if not field.nullable):
                raise pa.ArrowInvalid("a column has nulls")
        if batch.num_rows != min(BATCH_ROWS, self.num_rows - index * BATCH_ROWS):
            raise self._not_of_its_shard()
        return batch

    def _not_of_its_shard(self) -> FormatError:
        return FormatError(
            f"{self.place}: its shard has {counted(self.num_rows, 'document')}, and it has another number of rows; "
            "restore it"
        )


def _join(parts: list[DocumentColumns]) -> DocumentColumns:
    *columns, ids = zip(*parts, strict=True)
    joined = [None if column[0] is None else np.concatenate(column) for column in columns]
    return DocumentColumns._make([*joined, None if ids[0] is None else pa.concat_arrays(ids)])
