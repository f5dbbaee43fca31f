"""The file `.blocks` beside a shard: a checksum of each of its blocks. docs/reference/format.md describes it to the
byte.

A reader of a remote store fetches only the blocks that its next rows need, and verifies each on its own. A second
section has those of the shard's mask, if it has one. Blocks have 256 KiB: docs/project/decisions.md compares.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import xxhash

from tokenloom.errors import FormatError

MAGIC = b"TOKBLKS\0"
BLOCKS_FORMAT = 1
BLOCK_BYTES = 2**18
_FIXED = struct.Struct("<8sIIQII32s")  # magic, format, header bytes, file bytes, block bytes, zero, SHA-256
_CHECKSUM_BYTES = 16
_BUG = "its sections contradict each other; the program that wrote it has a bug"
_MIN_BLOCK_BYTES, _MAX_BLOCK_BYTES = 2**6, 2**26


@dataclass(frozen=True)
class ShardBlocks:
    """The checksums of the blocks of a shard, or of its mask, as a `.blocks` file has them.

    `sha256` is that of the file, in hexadecimal, and `header` are its first bytes, none of a mask. `checksums` are the
    xxh3_128 of its blocks, 16 bytes each; all blocks have `block_bytes`, the last may be shorter. `mask` says the same
    of the mask of a shard; None if it has none.
    """

    sha256: str
    num_bytes: int
    block_bytes: int
    header: bytes
    checksums: bytes
    mask: ShardBlocks | None = None

    @property
    def num_blocks(self) -> int:
        """The number of blocks of the shard."""
        return -(-self.num_bytes // self.block_bytes)

    def bounds(self, first: int, end: int) -> tuple[int, int]:
        """Return the bytes [start, end) of the shard that are in the blocks [first, end)."""
        return first * self.block_bytes, min(end * self.block_bytes, self.num_bytes)

    def covering(self, start: int, end: int) -> range:
        """Return the blocks that hold the bytes [start, end), start < end."""
        return range(start // self.block_bytes, -(-end // self.block_bytes))

    def matches(self, block: int, data: bytes | memoryview) -> bool:
        """Return whether `data` are the bytes of a block."""
        place = block * _CHECKSUM_BYTES
        return xxhash.xxh3_128_digest(data) == self.checksums[place : place + _CHECKSUM_BYTES]


class BlockHasher:
    """The checksums of the blocks of a file whose bytes come in order.

    Args:
        block_bytes: the length of a block; None for the one of this release.
    """

    def __init__(self, block_bytes: int | None = None) -> None:
        self.block_bytes = self._room = block_bytes or BLOCK_BYTES
        self._checksums, self._hasher = bytearray(), xxhash.xxh3_128()

    def update(self, data: memoryview) -> None:
        """Add the next bytes of the file."""
        while len(data):
            self._hasher.update(data[: self._room])
            taken = min(self._room, len(data))
            data, self._room = data[taken:], self._room - taken
            if self._room == 0:
                self._checksums += self._hasher.digest()
                self._hasher, self._room = xxhash.xxh3_128(), self.block_bytes

    def finish(self) -> bytes:
        """Return the checksums of all blocks, after the last byte."""
        return bytes(self._checksums) + (self._hasher.digest() if self._room < self.block_bytes else b"")


def blocks_name(name: str) -> str:
    """Return the name of the `.blocks` file beside a shard or its mask: "train/000000.tok" -> "train/000000.blocks"."""
    return f"{name.removesuffix('.tok').removesuffix('.mask')}.blocks"


def encode_blocks(blocks: ShardBlocks) -> bytes:
    """Return the bytes of a `.blocks` file."""
    body = b""
    for part in (blocks, blocks.mask):
        if part is not None:
            sizes = len(part.header), part.num_bytes, part.block_bytes
            fixed = _FIXED.pack(MAGIC, BLOCKS_FORMAT, *sizes, 0, bytes.fromhex(part.sha256))
            body += fixed + part.header + part.checksums
    return body + xxhash.xxh3_128_digest(body)


def decode_blocks(data: bytes, place: str) -> ShardBlocks:
    """Decode a `.blocks` file; raises FormatError if it is damaged, or of a newer format.

    Args:
        data: the bytes of the file.
        place: its path, for messages.
    """
    body, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    if len(body) < _FIXED.size or not body.startswith(MAGIC) or xxhash.xxh3_128_digest(body) != checksum:
        raise FormatError(f"{place}: the checksum does not match its bytes; the file is damaged or cut short")
    blocks, rest = _decode_section(body, place)
    mask, rest = _decode_section(rest, place) if rest else (None, b"")
    if rest or (mask and mask.header):
        raise FormatError(f"{place}: {_BUG}")
    return replace(blocks, mask=mask)


def _decode_section(data: bytes, place: str) -> tuple[ShardBlocks, bytes]:
    """Decode the section at the start of `data`; also return the bytes after it."""
    if len(data) < _FIXED.size or not data.startswith(MAGIC):
        raise FormatError(f"{place}: {_BUG}")
    _, version, header_bytes, num_bytes, block_bytes, _, sha256 = _FIXED.unpack_from(data)
    if version != BLOCKS_FORMAT:
        raise FormatError(f"{place}: format {version}; this release reads format {BLOCKS_FORMAT}: update tokenloom")
    header_end = _FIXED.size + header_bytes
    end = header_end + _CHECKSUM_BYTES * -(-num_bytes // max(1, block_bytes))
    if not _MIN_BLOCK_BYTES <= block_bytes <= _MAX_BLOCK_BYTES or header_bytes > num_bytes or len(data) < end:
        raise FormatError(f"{place}: {_BUG}")
    header, checksums = data[_FIXED.size : header_end], data[header_end:end]
    return ShardBlocks(sha256.hex(), num_bytes, block_bytes, header, checksums), data[end:]
