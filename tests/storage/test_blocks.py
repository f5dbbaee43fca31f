"""The file `.blocks`: what was written is read, damage is refused, and builds write those of every shard."""

from __future__ import annotations

import hashlib
import random
from dataclasses import replace

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.errors import FormatError
from tokenloom.storage.formats import blocks as blocks_module
from tokenloom.storage.formats.blocks import BlockHasher, ShardBlocks, decode_blocks, encode_blocks


def blocks_of(data: bytes, block_bytes: int, header_bytes: int) -> ShardBlocks:
    """Return the blocks of the bytes of a file, computed block by block."""
    checksums = [xxhash.xxh3_128_digest(data[i : i + block_bytes]) for i in range(0, len(data), block_bytes)]
    sha256 = hashlib.sha256(data).hexdigest()
    return ShardBlocks(sha256, len(data), block_bytes, data[:header_bytes], b"".join(checksums))


@given(st.binary(min_size=1, max_size=2000), st.integers(64, 700), st.integers(0, 2**32))
def test_checksums_do_not_depend_on_how_the_bytes_come(data: bytes, block_bytes: int, seed: int) -> None:
    hasher, rng, rest = BlockHasher(block_bytes), random.Random(seed), memoryview(data)
    while len(rest):
        taken = rng.randint(0, 900)
        hasher.update(rest[:taken])
        rest = rest[taken:]
    right = blocks_of(data, block_bytes, 0)
    assert hasher.finish() == right.checksums
    for block in range(right.num_blocks):
        start, end = right.bounds(block, block + 1)
        assert right.matches(block, data[start:end])
        assert not right.matches(block, data[start : end - 1])


@given(st.integers(0, 5000), st.integers(1, 5000), st.integers(64, 700))
def test_the_covering_blocks_are_those_that_hold_a_byte_of_the_range(start: int, length: int, block_bytes: int) -> None:
    blocks = ShardBlocks("00" * 32, 10_000, block_bytes, b"", b"")
    assert list(blocks.covering(start, start + length)) == sorted(
        {byte // block_bytes for byte in range(start, start + length)}
    )


def test_every_damage_to_the_file_is_refused() -> None:
    blocks = blocks_of(random.Random(1).randbytes(1000), 128, 100)
    blocks = replace(blocks, mask=blocks_of(random.Random(2).randbytes(300), 128, 0))
    data = encode_blocks(blocks)
    assert decode_blocks(data, "here") == blocks
    for at in range(len(data)):
        with pytest.raises(FormatError, match="here: the checksum does not match"):
            decode_blocks(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], "here")
        with pytest.raises(FormatError, match="here: the checksum does not match"):
            decode_blocks(data[:at], "here")


@pytest.mark.parametrize(
    "change",
    [
        *({"block_bytes": 2**27}, {"block_bytes": 0}, {"num_bytes": 99}, {"checksums": b""}),
        {"mask": blocks_of(bytes(200), 128, 1)},
        {"mask": replace(blocks_of(bytes(200), 128, 0), num_bytes=2000)},
        {"mask": replace(blocks_of(bytes(200), 128, 0), checksums=bytes(48))},
    ],
)
def test_a_file_that_contradicts_itself_is_refused(change: dict[str, object]) -> None:
    blocks = replace(blocks_of(bytes(1000), 128, 100), **change)  # type: ignore[arg-type]
    with pytest.raises(FormatError, match="here: its sections contradict each other"):
        decode_blocks(encode_blocks(blocks), "here")


def test_a_file_of_a_newer_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_module, "BLOCKS_FORMAT", 2)
    data = encode_blocks(blocks_of(bytes(1000), 128, 100))
    monkeypatch.setattr(blocks_module, "BLOCKS_FORMAT", 1)
    with pytest.raises(FormatError, match="format 2; this release reads format 1: update tokenloom"):
        decode_blocks(data, "here")
