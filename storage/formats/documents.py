"""The document table `.docs` beside a shard: where each of its documents comes from.

Uncompressed Arrow IPC, one row for each document in shard order, in batches of a fixed number of rows, so that the
bytes do not depend on how the shuffle cuts its work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from io import RawIOBase
from types import TracebackType
from typing import IO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokenloom.errors import FormatError, StoreError, message_of
from tokenloom.storage.formats.arrays import AnyArray
from tokenloom.storage.formats.shard_entries import FileEntry
from tokenloom.storage.stores.local_files import file_sha256

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


def table_schema(has_classes: bool, has_ids: bool) -> pa.Schema:
    """Return the columns of a version's tables: `classes` if it has masks, `id` if one of its sources names ids."""
    fields = [pa.field("classes", pa.uint64(), nullable=False)] * has_classes  # a hash of those of its tokens
    fields += [pa.field("id", pa.string())] * has_ids  # null where a source names none
    return pa.schema([*SCHEMA, *fields])


SCHEMAS = [table_schema(has_classes, has_ids) for has_classes in (False, True) for has_ids in (False, True)]


class DocumentTableWriter(AbstractContextManager["DocumentTableWriter"]):
    """Writes a document table into an open file.

    Args:
        file: a new file open for writing and reading (`Store.writing`).
        has_ids: write the column `id`.
        has_classes: write the column `classes`.

    The file is complete after a `with` block that raises nothing; `written` is its entry then.
    """

    def __init__(self, file: IO[bytes], has_ids: bool = False, has_classes: bool = False) -> None:
        self._file = file
        self._schema = table_schema(has_classes, has_ids)
        self._writer = pa.ipc.new_file(file, self._schema)
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._next_start = 0
        self.written: FileEntry | None = None

    def append(
        self,
        num_tokens: NDArray[np.uint32],
        inputs: NDArray[np.uint32],
        rows: NDArray[np.uint64],
        content: NDArray[np.uint64],
        keys: NDArray[np.uint64],
        ids: pa.Array | None = None,
        classes: NDArray[np.uint64] | None = None,
    ) -> None:
        """Add n documents; all arrays are (n,), `content` is (n, 2): high and low half; `ids` are strings.

        `classes` are hashes, see MaskWriter.append.
        """
        ends = self._next_start + np.cumsum(num_tokens, dtype=np.uint64)
        columns = [ends - num_tokens, num_tokens, inputs, rows]
        digests = pa.py_buffer(np.ascontiguousarray(content).astype(">u8").tobytes())
        arrays = [pa.array(column) for column in columns]
        arrays.append(pa.Array.from_buffers(pa.binary(16), len(keys), [None, digests]))
        arrays.append(pa.array(keys))
        if classes is not None:
            arrays.append(pa.array(classes))
        if ids is not None:
            arrays.append(ids.cast(pa.string()))
        self._next_start = int(ends[-1]) if len(ends) else self._next_start
        self._pending.append(pa.record_batch(arrays, schema=self._schema))
        self._pending_rows += len(keys)
        if self._pending_rows >= BATCH_ROWS:
            self._write(self._pending_rows - self._pending_rows % BATCH_ROWS)

    def _write(self, num_rows: int) -> None:
        table = pa.Table.from_batches(self._pending, self._schema).combine_chunks()
        self._writer.write_table(table.slice(0, num_rows), max_chunksize=BATCH_ROWS)
        self._pending = table.slice(num_rows).to_batches()
        self._pending_rows = table.num_rows - num_rows

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            if self._pending_rows:
                self._write(self._pending_rows)
            self._writer.close()
            self._file.flush()
            sha256 = file_sha256(self._file)
            self.written = FileEntry(self._file.tell(), sha256)


def open_table(
    file: RawIOBase, place: str, options: pa.ipc.IpcReadOptions | None = None
) -> pa.ipc.RecordBatchFileReader:
    """Return a reader of a document table; raises FormatError if it is damaged or has other columns.

    Args:
        file: the table's file, open for reading.
        place: its path, for the message.
        options: which columns to read; None for all.
    """
    with _naming_damage(place):
        reader = pa.ipc.open_file(file, options=options)
        if options is None and reader.schema not in SCHEMAS:
            raise pa.ArrowInvalid("its columns are not those of a document table")
        return reader


def read_batch(reader: pa.ipc.RecordBatchFileReader, index: int, place: str) -> pa.RecordBatch:
    """Return batch `index` of a table, checked; raises FormatError if it is damaged."""
    with _naming_damage(place):
        batch = reader.get_batch(index)
        batch.validate(full=True)  # without it, a conversion may read outside of the file
        if any(batch[field.name].null_count for field in batch.schema if not field.nullable):
            raise pa.ArrowInvalid("a column has nulls")
        return batch


def column_values(batch: pa.RecordBatch, name: str) -> AnyArray:
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
