"""The shard file `.tok`: header, tokens, document offsets. docs/reference/format.md describes it to the byte.

A shard is read as arrays over the mapped file, so opening one costs the same whatever its length.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import IO

import numpy as np
import xxhash
from numpy.typing import NDArray

from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.formats.arrays import TOKEN_DTYPES, AnyArray, AnyDtype
from tokenloom.storage.formats.records import JsonObject, canonical_json, parse_json
from tokenloom.storage.stores.local_files import open_regular

FORMAT_VERSION = 1
MAGIC = b"TOKLOOM\0"
ALIGNMENT = 4096  # tokens start at a multiple of it
_FIXED = struct.Struct("<8sIIIIQQQQQ16s16s")
_CHECKSUM_BYTES = 16
_MAX_HEADER_BYTES = 2**24
_READ_BYTES = 2**22


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
    info: JsonObject

    @property
    def dtype(self) -> AnyDtype:
        """The stored type of a token: little-endian uint8, uint16 or uint32."""
        return TOKEN_DTYPES[self.token_bytes]


def pack_header(header: ShardHeader) -> bytes:
    """Return the bytes of a header."""
    token_bytes, *rest, _ = astuple(header)
    info = canonical_json(header.info)
    fixed = _FIXED.pack(MAGIC, FORMAT_VERSION, header.tokens_start, token_bytes, len(info), *rest)
    body = (fixed + info).ljust(header.tokens_start - _CHECKSUM_BYTES, b"\0")
    return body + xxhash.xxh3_128_digest(body)


def header_length(info: JsonObject) -> int:
    """Return the bytes of a header with this JSON block."""
    used = _FIXED.size + len(canonical_json(info)) + _CHECKSUM_BYTES
    return -(-used // ALIGNMENT) * ALIGNMENT


def unpack_header(data: memoryview, place: str) -> ShardHeader:
    """Return the header that a shard begins with; raises FormatError if it is damaged, or of a newer format.

    Args:
        data: the first bytes of the shard, with the whole header.
        place: the shard's path, for messages.
    """
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
    info = parse_json(bytes(data[_FIXED.size : _FIXED.size + json_bytes]), f"{place}: its header")
    header = ShardHeader(token_bytes, *rest, info)  # type: ignore[call-arg]  # the seven fields between
    tokens_end = header.tokens_start + header.num_tokens * token_bytes
    if (
        not isinstance(info, dict)
        or token_bytes not in TOKEN_DTYPES
        or header.tokens_start <= 0
        or header.tokens_start % ALIGNMENT
        or header.offsets_start != -(-tokens_end // 8) * 8
        or header.file_bytes != header.offsets_start + 8 * (header.num_documents + 1)
    ):
        raise FormatError(f"{place}: the counts and offsets of the header contradict each other")
    return header


def read_header(read: Callable[[int, int], bytes], place: str) -> ShardHeader:
    """Return the checked header of a shard, without reading more of the file; raises what `read` does, FormatError.

    Args:
        read: returns bytes [start, end) of the shard.
        place: its path, for messages.
    """
    data = read(0, ALIGNMENT)
    header_bytes = int.from_bytes(data[12:16], "little")
    if ALIGNMENT < header_bytes <= _MAX_HEADER_BYTES and data.startswith(MAGIC):
        data += read(ALIGNMENT, header_bytes)
    return unpack_header(memoryview(data), place)


def check_file(file: IO[bytes], place: str, verify: str = "open") -> ShardHeader:
    """Return the header of an open shard after the checks of `Shard`, whose errors it raises."""
    if verify not in ("open", "full"):
        raise ValueError(f'verify is "open" or "full", not {verify!r}')
    header = read_header(lambda start, end: os.pread(file.fileno(), end - start, start), place)
    num_bytes = os.fstat(file.fileno()).st_size
    if header.file_bytes != num_bytes:
        raise FormatError(
            f"{place}: {num_bytes:,} bytes, the header says {header.file_bytes:,}: it was cut short; restore it"
        )
    if verify == "full":
        file.seek(header.tokens_start)
        hasher, left = xxhash.xxh3_128(), header.offsets_start - header.tokens_start
        while left and (data := file.read(min(left, _READ_BYTES))):
            hasher.update(data)
            left -= len(data)
        if hasher.digest() != header.tokens_checksum:
            raise FormatError(f"{place}: the checksum of its tokens does not match; the file is damaged")
        checked_offsets(file.read(), header, place)
    return header


def map_file(file: IO[bytes], path: str | Path) -> memoryview:
    """Return the bytes of an open file, mapped into memory; raises StoreError if its file system can't do that."""
    try:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        if error.errno != errno.ENODEV:
            raise
        raise StoreError(
            f'{path}: its file system can\'t map files into memory; read it with TokenDataset(..., access="pread"), or '
            "copy the store to another file system"
        ) from error


def checked_offsets(data: bytes | memoryview, header: ShardHeader, place: str) -> NDArray[np.uint64]:
    """Return the document offsets in `data`, (num_documents + 1,); raises FormatError if they are damaged.

    Args:
        data: the bytes from `header.offsets_start` to the file's end.
        header: the shard's header.
        place: its path, for messages.
    """
    if xxhash.xxh3_128_digest(data) != header.offsets_checksum:
        raise FormatError(f"{place}: the checksum of its document offsets does not match; the file is damaged")
    offsets = np.frombuffer(data, np.dtype("<u8"))
    if (int(offsets[0]), int(offsets[-1])) != (0, header.num_tokens) or bool((offsets[1:] < offsets[:-1]).any()):
        raise FormatError(f"{place}: the document offsets contradict the counts; the program that wrote them has a bug")
    return offsets


class Shard:
    """One shard, opened on its own, as arrays over the mapped file.

    Args:
        path: a local `.tok` file.
        verify: "open" checks header and length; "full" also the checksums of both sections.

    Raises:
        FormatError: the file is damaged, cut short, or of a newer format.
    """

    def __init__(self, path: str | Path, verify: str = "open") -> None:
        self.path = Path(path)
        with open_regular(self.path) as file:
            self.header = header = check_file(file, str(path), verify)
            # Arrays over the map stay valid while they are alive: it is never closed explicitly.
            data = map_file(file, self.path)
        #: (num_tokens,) of `header.dtype`, read-only
        self.tokens: AnyArray = np.frombuffer(data, header.dtype, header.num_tokens, header.tokens_start)
        #: (num_documents + 1,) uint64, read-only: document i is tokens[offsets[i]:offsets[i + 1]]
        self.document_offsets: NDArray[np.uint64] = np.frombuffer(
            data, np.dtype("<u8"), header.num_documents + 1, header.offsets_start
        )


def open_shard(path: str | Path, verify: str = "open") -> Shard:
    """Open a single `.tok` file: `.tokens`, `.document_offsets`, `.header`. See Shard for arguments and errors."""
    return Shard(path, verify)
