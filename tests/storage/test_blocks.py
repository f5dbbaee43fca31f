"""The file `.blocks`: what was written is read, damage is refused, and builds and verify write the same bytes."""

from __future__ import annotations

import hashlib
import random
from dataclasses import replace
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tests.builders.damaging import Made, make_version
from tokenloom.errors import FormatError
from tokenloom.flows.direct import verify_directly
from tokenloom.storage.formats import blocks as blocks_module
from tokenloom.storage.formats.blocks import (
    BlockHasher,
    ShardBlocks,
    blocks_name,
    decode_blocks,
    encode_blocks,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A version with every kind of file in it."""
    return make_version(tmp_path_factory.mktemp("blocks"))


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
    data = encode_blocks(blocks)
    assert decode_blocks(data, "here") == blocks
    for at in range(len(data)):
        with pytest.raises(FormatError, match="here: the checksum does not match"):
            decode_blocks(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], "here")
        with pytest.raises(FormatError, match="here: the checksum does not match"):
            decode_blocks(data[:at], "here")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"block_bytes": 2**27}, "contradicts itself"),
        ({"block_bytes": 0}, "contradicts itself"),
        ({"num_bytes": 99}, "contradicts itself"),
        ({"num_bytes": 2000}, "does not have a checksum for each block"),
        ({"checksums": b""}, "does not have a checksum for each block"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(change: dict[str, object], match: str) -> None:
    blocks = replace(blocks_of(bytes(1000), 128, 100), **change)  # type: ignore[arg-type]
    with pytest.raises(FormatError, match=match):
        decode_blocks(encode_blocks(blocks), "here")


def test_a_file_of_a_newer_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_module, "BLOCKS_FORMAT", 2)
    data = encode_blocks(blocks_of(bytes(1000), 128, 100))
    monkeypatch.setattr(blocks_module, "BLOCKS_FORMAT", 1)
    with pytest.raises(FormatError, match="format 2; this release reads format 1: update tokenloom"):
        decode_blocks(data, "here")


def shard_files(made: Made) -> list[Path]:
    """Return the shards of the version."""
    return [made.store.local(name) for name in made.files if name.endswith(".tok")]


def test_a_build_writes_the_blocks_of_every_shard(made: Made) -> None:
    for path in shard_files(made):
        data, written = path.read_bytes(), Path(blocks_name(str(path)))
        header_bytes = int.from_bytes(data[12:16], "little")
        assert written.read_bytes() == encode_blocks(blocks_of(data, blocks_module.BLOCK_BYTES, header_bytes))


def test_verify_writes_missing_and_damaged_files_again_and_leaves_right_ones(made: Made) -> None:
    paths = [Path(blocks_name(str(path))) for path in shard_files(made)]
    before = [path.read_bytes() for path in paths]
    paths[0].unlink()
    paths[1].write_bytes(before[1][:-1])
    paths[2].write_bytes(before[3])  # of another shard
    found = verify_directly(made.reference, False, None, 0)
    names = [path.relative_to(made.store.root).as_posix() for path in paths]
    assert [row["file"] for row in found["damages"]] == names[1:3]  # a missing one is not reported
    assert all("--write-blocks" in row["next_step"] for row in found["damages"])
    assert (found["warnings"], found["blocks_written"]) == ([], 0)
    kept = paths[4].stat().st_mtime_ns
    found = verify_directly(made.reference, False, None, 0, write_blocks=True)
    assert (found["damages"], found["warnings"], found["blocks_written"]) == ([], [], 3)
    assert [path.read_bytes() for path in paths] == before
    assert paths[4].stat().st_mtime_ns == kept


def test_verify_does_not_replace_a_file_of_a_newer_format(made: Made) -> None:
    path = Path(blocks_name(str(shard_files(made)[0])))
    before = path.read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks_module, "BLOCKS_FORMAT", 2)
        path.write_bytes(newer := encode_blocks(blocks_of(b"what only a newer release knows", 64, 0)))
    try:
        for write_blocks in (False, True):
            found = verify_directly(made.reference, False, None, 0, write_blocks=write_blocks)
            (row,) = found["damages"]
            assert row["file"] == path.relative_to(made.store.root).as_posix()
            assert row["what"] == "format 2; this release reads format 1: update tokenloom"
            assert row["next_step"] == "update tokenloom; this release reads its shard whole"
            assert (path.read_bytes(), found["blocks_written"]) == (newer, 0)
    finally:
        path.write_bytes(before)


def test_no_blocks_are_written_for_a_damaged_shard(made: Made) -> None:
    path = shard_files(made)[0]
    data, blocks = path.read_bytes(), Path(blocks_name(str(path)))
    right = blocks.read_bytes()
    blocks.unlink()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    try:
        found = verify_directly(made.reference, False, None, 0, write_blocks=True)
        assert found["blocks_written"] == 0
        assert not blocks.exists()
    finally:
        path.write_bytes(data)
        blocks.write_bytes(right)
