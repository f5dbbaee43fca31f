"""The shard file `.tok`: header, tokens, document offsets. docs/format.md describes it to the byte.

A shard is read as arrays over the mapped file, so opening one costs the same whatever its length.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from tokenloom.errors import FormatError
from tokenloom.storage.formats.canonical import canonical_json
from tokenloom.storage.stores.local_files import check_regular, write_all

FORMAT_VERSION = 1
MAGIC = b"TOKLOOM\0"
ALIGNMENT = 4096  # tokens start at a multiple of it
_FIXED = struct.Struct("<8sIIIIQQQQQ16s16s")
_CHECKSUM_BYTES = 16
_DTYPES: dict[int, np.dtype[Any]] = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4")}
_MAX_HEADER_BYTES = 2**24


@dataclass(frozen=True)
class ShardHeader:
    """The header of a shard; sizes are in bytes.

    `info` holds tokenizer name and fingerprint, vocab_size, eot_id, dataset, split, shard_index and seed.
    """

    token_bytes: int
    num_tokens: int
    num_documents: int
    tokens_start: int
    offsets_start: int
    file_bytes: int
    tokens_checksum: bytes
    offsets_checksum: bytes
    info: dict[str, Any]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The stored type of a token: little-endian uint8, uint16 or uint32."""
        return _DTYPES[self.token_bytes]


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the narrowest stored type for ids in [0, vocab_size); raises ValueError above 2**32."""
    for width, dtype in _DTYPES.items():
        if 0 < vocab_size <= 2 ** (8 * width):
            return dtype
    raise ValueError(f"a vocabulary has 1 to 2**32 ids, not {vocab_size}")


def _pack_header(header: ShardHeader) -> bytes:
    info = canonical_json(header.info)
    fixed = _FIXED.pack(
        MAGIC,
        FORMAT_VERSION,
        header.tokens_start,
        header.token_bytes,
        len(info),
        header.num_tokens,
        header.num_documents,
        header.tokens_start,
        header.offsets_start,
        header.file_bytes,
        header.tokens_checksum,
        header.offsets_checksum,
    )
    body = (fixed + info).ljust(header.tokens_start - _CHECKSUM_BYTES, b"\0")
    return body + xxhash.xxh3_128_digest(body)


def _header_bytes(info: dict[str, Any]) -> int:
    used = _FIXED.size + len(canonical_json(info)) + _CHECKSUM_BYTES
    return -(-used // ALIGNMENT) * ALIGNMENT


def _unpack_header(data: memoryview, place: str) -> ShardHeader:
    if len(data) < ALIGNMENT or bytes(data[:8]) != MAGIC:
        raise FormatError(f"{place}: not a shard: it does not start with {MAGIC!r}")
    _, version, header_bytes, token_bytes, json_bytes, *rest = _FIXED.unpack_from(data)
    if version != FORMAT_VERSION:
        raise FormatError(
            f"{place}: shard format {version}; this release reads format {FORMAT_VERSION}: update tokenloom"
        )
    if not ALIGNMENT <= header_bytes <= min(len(data), _MAX_HEADER_BYTES):
        raise FormatError(f"{place}: the header claims {header_bytes} bytes; the file is damaged or cut short")
    body, checksum = (
        data[: header_bytes - _CHECKSUM_BYTES],
        data[header_bytes - _CHECKSUM_BYTES : header_bytes],
    )
    if xxhash.xxh3_128_digest(body) != bytes(checksum):
        raise FormatError(f"{place}: the header's checksum does not match; the file is damaged")
    try:
        info = json.loads(bytes(data[_FIXED.size : _FIXED.size + json_bytes]))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{place}: the header holds no JSON; its writer was wrong") from error
    if not isinstance(info, dict):
        raise FormatError(f"{place}: the header's JSON is no object; its writer was wrong")
    return ShardHeader(token_bytes, *rest, info)  # type: ignore[call-arg]  # the seven fields between


def read_header(read: Callable[[int, int], bytes], place: str) -> ShardHeader:
    """Return the checked header of a shard of which no more is read.

    Args:
        read: returns the bytes [start, end) of the file.
        place: its path, for messages.

    Raises:
        FormatError: the header is damaged or contradicts itself, or is of a newer format.
    """
    data = read(0, ALIGNMENT)
    header_bytes = int.from_bytes(data[12:16], "little")
    if ALIGNMENT < header_bytes <= _MAX_HEADER_BYTES and data.startswith(MAGIC):
        data += read(ALIGNMENT, header_bytes)
    header = _unpack_header(memoryview(data), place)
    if not _fits(header):
        raise FormatError(f"{place}: the counts and offsets of the header contradict each other")
    return header


def _fits(header: ShardHeader) -> bool:
    """Return whether the sections lie behind each other as counts and width say."""
    tokens_end = header.tokens_start + header.num_tokens * header.token_bytes
    return (
        header.token_bytes in _DTYPES
        and header.tokens_start > 0
        and header.tokens_start % ALIGNMENT == 0
        and header.offsets_start == -(-tokens_end // 8) * 8
        and header.file_bytes == header.offsets_start + 8 * (header.num_documents + 1)
    )


def checked_offsets(data: bytes | memoryview, header: ShardHeader, place: str) -> NDArray[np.uint64]:
    """Return the document offsets in `data`, (num_documents + 1,); raises FormatError if they are damaged.

    Args:
        data: the bytes from `header.offsets_start` to the file's end.
        header: of the shard.
        place: its path, for messages.
    """
    if xxhash.xxh3_128_digest(data) != header.offsets_checksum:
        raise FormatError(f"{place}: the checksum of its document offsets does not match; the file is damaged")
    offsets = np.frombuffer(data, np.dtype("<u8"))
    if (int(offsets[0]), int(offsets[-1])) != (0, header.num_tokens) or bool((offsets[1:] < offsets[:-1]).any()):
        raise FormatError(f"{place}: the document offsets contradict the counts; its writer was wrong")
    return offsets


class Shard:
    """One shard opened alone, as arrays over the mapped file.

    Args:
        path: a local `.tok` file.
        verify: "open" checks header and length; "full" also the checksums of both sections.

    Raises:
        FormatError: the file is damaged, cut short, or of a newer format.
    """

    def __init__(self, path: str | Path, verify: str = "open") -> None:
        if verify not in ("open", "full"):
            raise ValueError(f'verify is "open" or "full", not {verify!r}')
        self.path = Path(path)
        check_regular(self.path)
        with self.path.open("rb") as file:
            try:
                # Windows of the map stay valid while an array over them lives; it is never closed by hand.
                self._map = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            except ValueError as error:
                raise FormatError(f"{path}: the file is empty") from error
        self.header = header = _unpack_header(self._map, str(path))
        if header.file_bytes != len(self._map):
            raise FormatError(f"{path}: {len(self._map)} bytes, the header says {header.file_bytes}: cut short?")
        if not _fits(header):
            raise FormatError(f"{path}: the counts and offsets of the header contradict each other")
        #: (num_tokens,) of `header.dtype`, read-only
        self.tokens: NDArray[Any] = np.frombuffer(self._map, header.dtype, header.num_tokens, header.tokens_start)
        #: (num_documents + 1,) uint64, read-only: document i is tokens[offsets[i]:offsets[i + 1]]
        self.document_offsets: NDArray[np.uint64] = np.frombuffer(
            self._map, np.dtype("<u8"), header.num_documents + 1, header.offsets_start
        )
        if verify == "full":
            self.verify_tokens()
            self.verify_offsets()

    def verify_tokens(self) -> None:
        """Raise FormatError if the checksum of the tokens does not match; reads all of them."""
        header = self.header
        self._verify("tokens", header.tokens_start, header.offsets_start, header.tokens_checksum)

    def verify_offsets(self) -> None:
        """Raise FormatError if the checksum of the document offsets does not match, or they contradict the counts."""
        checked_offsets(self._map[self.header.offsets_start :], self.header, str(self.path))

    def _verify(self, name: str, start: int, end: int, checksum: bytes) -> None:
        if xxhash.xxh3_128_digest(self._map[start:end]) != checksum:
            raise FormatError(f"{self.path}: the checksum of its {name} does not match; the file is damaged")


def open_shard(path: str | Path, verify: str = "open") -> Shard:
    """Open one `.tok` file alone: `.tokens`, `.document_offsets`, `.header`. See Shard for arguments and errors."""
    return Shard(path, verify)


class ShardWriter:
    """Writes one shard into an open file, piece by piece; memory holds the document lengths alone.

    Args:
        file: a new file open for writing and reading (`Store.writing`).
        vocab_size: decides the stored type.
        info: the JSON block, see ShardHeader.

    The file is complete after a `with` block that ends well; `record` then tells its length and SHA-256.
    """

    def __init__(self, file: IO[bytes], vocab_size: int, info: dict[str, Any]) -> None:
        self._file = file
        self._info = info
        self._dtype = token_dtype(vocab_size)
        self._tokens_start = _header_bytes(info)
        self._tokens_hash = xxhash.xxh3_128()
        self._num_tokens = 0
        self._lengths: list[NDArray[np.uint32]] = []
        self.record: dict[str, Any] = {}

    def __enter__(self) -> ShardWriter:
        write_all(self._file, bytes(self._tokens_start))
        return self

    def append(self, tokens: NDArray[Any], num_tokens: NDArray[np.uint32]) -> None:
        """Add whole documents.

        Args:
            tokens: (sum(num_tokens),) of the stored type.
            num_tokens: (n,) tokens of each document.
        """
        if tokens.dtype != self._dtype:
            raise TypeError(f"tokens are {tokens.dtype}, the shard stores {self._dtype}")
        view = memoryview(np.ascontiguousarray(tokens).data).cast("B")
        self._tokens_hash.update(view)
        write_all(self._file, view)
        self._num_tokens += len(tokens)
        self._lengths.append(num_tokens)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and not self.record:
            self.finish()

    def finish(self) -> None:
        """Write what stands behind and before the tokens; the file is complete then."""
        padding = bytes(-self._num_tokens * self._dtype.itemsize % 8)
        self._tokens_hash.update(padding)
        write_all(self._file, padding)
        lengths = np.concatenate([np.zeros(1, np.uint32), *self._lengths])
        offsets = np.cumsum(lengths, dtype=np.uint64).astype("<u8").tobytes()
        offsets_start = self._tokens_start + self._num_tokens * self._dtype.itemsize + len(padding)
        write_all(self._file, offsets)
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
        self._file.seek(0)
        write_all(self._file, _pack_header(header))
        self._file.flush()
        self.record = {
            "bytes": header.file_bytes,
            "tokens": header.num_tokens,
            "documents": header.num_documents,
            "sha256": file_sha256(self._file),
        }


def file_sha256(file: IO[bytes]) -> str:
    """Return the SHA-256 of all of an open file, in hexadecimal."""
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
