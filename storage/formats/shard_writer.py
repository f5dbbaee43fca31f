"""The writers of the shard file `.tok`, which shard.py reads, and of the file `.mask` beside it.

A mask is the class of each token, one byte each, and nothing else: classes.py says what they mean.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType
from typing import IO

import numpy as np
import xxhash
from numpy.typing import NDArray

from tokenloom.storage.formats.arrays import AnyArray, UInt64s, token_dtype
from tokenloom.storage.formats.blocks import BlockHasher, ShardBlocks
from tokenloom.storage.formats.records import JsonObject
from tokenloom.storage.formats.shard import ShardHeader, header_length, pack_header
from tokenloom.storage.stores import local_files


@dataclass(frozen=True, slots=True)
class ShardFileRecord:
    """A `.tok` file as a manifest lists it; `sha256` covers all its bytes."""

    bytes: int
    tokens: int
    documents: int
    sha256: str


class ShardWriter:
    """Writes one shard into an open file, piece by piece; only the document lengths stay in memory.

    Args:
        file: a new file open for writing and reading (`Store.writing`).
        vocab_size: decides the stored type.
        info: the JSON block, see ShardHeader.

    The file is complete after a `with` block that raises nothing; `record` and `blocks` are set then.
    """

    def __init__(self, file: IO[bytes], vocab_size: int, info: JsonObject) -> None:
        self._file = file
        self._info = info
        self._dtype = token_dtype(vocab_size)
        self._tokens_start = header_length(info)
        self._tokens_hash = xxhash.xxh3_128()
        self._num_tokens = 0
        self._lengths: list[NDArray[np.uint32]] = []
        self.record: ShardFileRecord | None = None
        self.blocks: ShardBlocks | None = None

    def __enter__(self) -> ShardWriter:
        local_files.write_all(self._file, bytes(self._tokens_start))
        return self

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and not self.record:
            self.finish()

    def finish(self) -> ShardFileRecord:
        """Write the document offsets and the header, which complete the file; return its record."""
        padding = bytes(-self._num_tokens * self._dtype.itemsize % 8)  # up to the offsets
        self._tokens_hash.update(padding)
        local_files.write_all(self._file, padding)
        offsets_start = self._tokens_start + self._num_tokens * self._dtype.itemsize + len(padding)
        lengths = np.concatenate([np.zeros(1, np.uint32), *self._lengths])
        offsets = np.cumsum(lengths, dtype=np.uint64).astype("<u8").tobytes()
        local_files.write_all(self._file, offsets)
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
        self.record = self._write_header(header)
        return self.record

    def _write_header(self, header: ShardHeader) -> ShardFileRecord:
        """Write the header, read the complete file once for its checksums, and return its record."""
        packed, hasher = pack_header(header), BlockHasher()
        self._file.seek(0)
        local_files.write_all(self._file, packed)
        self._file.flush()
        digest, buffer = hashlib.sha256(), memoryview(bytearray(hasher.block_bytes))
        self._file.seek(0)
        while num_bytes := self._file.readinto(buffer):  # type: ignore[attr-defined]  # a file open for reading has it
            digest.update(buffer[:num_bytes])
            hasher.update(buffer[:num_bytes])
        sha256 = digest.hexdigest()
        self.blocks = ShardBlocks(sha256, header.file_bytes, hasher.block_bytes, packed, hasher.finish())
        return ShardFileRecord(header.file_bytes, header.num_tokens, header.num_documents, sha256)


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
