"""The writers of the shard file `.tok`, which shard.py reads, and of the `.mask` and `.docs` files beside it.

A mask is the class of each token, one byte each, and nothing else: classes.py says what they mean. document_table.py
reads the document table.
"""

from __future__ import annotations

import hashlib
from itertools import pairwise
from typing import IO

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from tokenloom.storage.formats.arrays import AnyArray, UInt64s, token_dtype
from tokenloom.storage.formats.blocks import BlockHasher, ShardBlocks
from tokenloom.storage.formats.document_table import BATCH_ROWS, table_schema
from tokenloom.storage.formats.manifest import FileEntry
from tokenloom.storage.formats.records import JsonObject
from tokenloom.storage.formats.shard import ShardHeader, header_length, pack_header
from tokenloom.storage.stores import local_files


class ShardWriter:
    """Writes one shard into an open file, piece by piece; only the document lengths stay in memory.

    Args:
        file: a new file open for writing and reading (`Store.writing`).
        vocab_size: decides the stored type.
        info: the JSON block, see ShardHeader.
    """

    def __init__(self, file: IO[bytes], vocab_size: int, info: JsonObject) -> None:
        self._file, self._info = file, info
        self._dtype = token_dtype(vocab_size)
        self._tokens_start = header_length(info)
        self._tokens_hash = xxhash.xxh3_128()
        self._num_tokens = 0
        self._lengths = [np.zeros(1, np.uint32)]
        local_files.write_all(file, bytes(self._tokens_start))  # the header is written last

    def append(self, tokens: AnyArray, num_tokens: NDArray[np.uint32]) -> None:
        """Add whole documents.

        Args:
            tokens: (sum(num_tokens),) of the stored type.
            num_tokens: (n,) tokens of each document.
        """
        if tokens.dtype != self._dtype:
            raise TypeError(f"tokens are {tokens.dtype}, the shard stores {self._dtype}")
        view = memoryview(np.ascontiguousarray(tokens).data).cast("B")
        self._tokens_hash.update(view)
        local_files.write_all(self._file, view)
        self._num_tokens += len(tokens)
        self._lengths.append(num_tokens)

    def finish(self) -> tuple[ShardHeader, ShardBlocks]:
        """Write the document offsets and the header, which complete the file; return the header, and its checksums."""
        padding = bytes(-self._num_tokens * self._dtype.itemsize % 8)  # up to the offsets
        self._tokens_hash.update(padding)
        offsets_start = self._tokens_start + self._num_tokens * self._dtype.itemsize + len(padding)
        lengths = np.concatenate(self._lengths)
        offsets = np.cumsum(lengths, dtype=np.uint64).astype("<u8").tobytes()
        local_files.write_all(self._file, padding + offsets)
        header = ShardHeader(
            token_bytes=self._dtype.itemsize,
            num_tokens=self._num_tokens,
            num_documents=len(lengths) - 1,
            tokens_start=self._tokens_start,
            offsets_start=offsets_start,
            file_bytes=offsets_start + len(offsets),
            tokens_checksum=self._tokens_hash.digest(),
            offsets_checksum=xxhash.xxh3_128_digest(offsets),
            info=self._info,
        )
        packed = pack_header(header)
        self._file.seek(0)
        local_files.write_all(self._file, packed)
        self._file.flush()
        return header, self._checksums(packed, header.file_bytes)

    def _checksums(self, packed: bytes, num_bytes: int) -> ShardBlocks:
        """Read the complete file once for its checksums."""
        digest, hasher = hashlib.sha256(), BlockHasher()
        buffer = memoryview(bytearray(hasher.block_bytes))
        self._file.seek(0)
        while count := self._file.readinto(buffer):  # type: ignore[attr-defined]  # a file open for reading has it
            digest.update(buffer[:count])
            hasher.update(buffer[:count])
        return ShardBlocks(digest.hexdigest(), num_bytes, hasher.block_bytes, packed, hasher.finish())


class MaskWriter:
    """Writes the mask of one shard into an open file, piece by piece.

    Args:
        file: a new file open for writing (`Store.writing`).
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._sha256, self._hasher = hashlib.sha256(), BlockHasher()
        self._counts = np.zeros(256, np.int64)

    def append(self, classes: NDArray[np.uint8], num_tokens: NDArray[np.uint32]) -> UInt64s:
        """Add the classes of whole documents; return the hash of those of each, for the document table.

        Args:
            classes: (sum(num_tokens),).
            num_tokens: (n,) tokens of each document.
        """
        view = np.ascontiguousarray(classes).data
        local_files.write_all(self._file, view)
        self._sha256.update(view)
        self._hasher.update(view)
        self._counts += np.bincount(classes, minlength=256)
        ends = np.cumsum(num_tokens, dtype=np.int64).tolist()
        return np.array([xxhash.xxh3_64_intdigest(view[start:end]) for start, end in pairwise([0, *ends])], np.uint64)

    def finish(self) -> ShardBlocks:
        """Return the checksums of the file, after the last token."""
        self._file.flush()
        num_bytes = int(self._counts.sum())
        return ShardBlocks(self._sha256.hexdigest(), num_bytes, self._hasher.block_bytes, b"", self._hasher.finish())

    def counts(self) -> dict[str, int]:
        """Return how many tokens have each class, by its number; classes that no token has are left out."""
        return {str(number): int(self._counts[number]) for number in np.flatnonzero(self._counts).tolist()}


class DocumentTableWriter:
    """Writes a document table into an open file.

    Args:
        file: a new file open for writing and reading (`Store.writing`).
        has_ids: write the column `id`.
        has_classes: write the column `classes`.
    """

    def __init__(self, file: IO[bytes], has_ids: bool = False, has_classes: bool = False) -> None:
        self._file = file
        self._schema = table_schema(has_classes, has_ids)
        self._writer = pa.ipc.new_file(file, self._schema)
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._next_start = 0

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
        digests = pa.py_buffer(np.ascontiguousarray(content).astype(">u8").tobytes())
        contents = pa.Array.from_buffers(pa.binary(16), len(keys), [None, digests])
        arrays = [*map(pa.array, (ends - num_tokens, num_tokens, inputs, rows)), contents, pa.array(keys)]
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

    def finish(self) -> FileEntry:
        """Complete the file, after the last document; return its entry."""
        if self._pending_rows:
            self._write(self._pending_rows)
        self._writer.close()
        self._file.flush()
        sha256 = local_files.file_sha256(self._file)
        return FileEntry(bytes=self._file.tell(), sha256=sha256)
