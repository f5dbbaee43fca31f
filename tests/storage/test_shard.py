"""The shard file round-trips, and every damaged byte is detected."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.counts import count
from tokenloom.errors import FormatError
from tokenloom.storage import open_shard
from tokenloom.storage.formats.arrays import token_dtype
from tokenloom.storage.formats.shard import ALIGNMENT
from tokenloom.storage.formats.shard_writer import ShardWriter

PROPERTY = settings(max_examples=count(60, 2000), suppress_health_check=[HealthCheck.function_scoped_fixture])
GOLDEN = Path(__file__).parent / "golden"
VOCABULARIES = {256: np.uint8, 50257: np.uint16, 200_019: np.uint32}
INFO = {
    "dataset": "golden",
    "eot_id": 50256,
    "seed": 0,
    "shard_index": 0,
    "split": "train",
    "tokenizer": "gpt2",
    "tokenizer_fingerprint": "5f" * 32,
    "vocab_size": 50257,
}
Documents = Sequence[Sequence[int]]
# golden/format-1.tok was made by writing these five documents (uint16; the last id of each but one is end-of-text)
# with INFO in two appends, of three and of two documents: `write(path, GOLDEN_DOCUMENTS, 50257, INFO, [3])`.
GOLDEN_DOCUMENTS = [[15496, 995, 50256], [50256], [*range(0, 50000, 257), 50256], [65535], [0, 255, 256, 50256]]


def write(path: Path, documents: Documents, vocab_size: int, info: dict[str, Any], cuts: Sequence[int] = ()) -> Path:
    """Write a shard; `cuts` are the positions between documents where one append ends and the next begins."""
    dtype = token_dtype(vocab_size)
    bounds = [0, *sorted(cuts), len(documents)]
    with path.open("w+b") as file:
        writer = ShardWriter(file, vocab_size, info)
        for start, end in itertools.pairwise(bounds):
            part = documents[start:end]
            tokens = np.array([token for document in part for token in document], dtype=dtype)
            writer.append(tokens, np.array([len(document) for document in part], dtype=np.uint32))
        header, checksums = writer.finish()
    assert header.file_bytes == checksums.num_bytes == path.stat().st_size
    return path


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write(tmp_path / "small.tok", GOLDEN_DOCUMENTS, 50257, INFO, [3])


def read_back(path: Path) -> list[list[int]]:
    shard = open_shard(path, verify="full")
    offsets = shard.document_offsets.tolist()
    assert offsets[0] == 0
    assert offsets[-1] == len(shard.tokens)
    return [shard.tokens[a:b].tolist() for a, b in itertools.pairwise(offsets)]


@PROPERTY
@given(st.sampled_from(sorted(VOCABULARIES)), st.data())
def test_documents_round_trip_whatever_the_appends(tmp_path: Path, vocab_size: int, data: st.DataObject) -> None:
    ids = st.integers(0, vocab_size - 1)
    documents = data.draw(st.lists(st.lists(ids, max_size=20), max_size=20))
    cuts = data.draw(st.lists(st.integers(0, len(documents)), max_size=10))
    path = write(tmp_path / "shard.tok", documents, vocab_size, INFO | {"vocab_size": vocab_size}, cuts)
    assert read_back(path) == documents
    shard = open_shard(path)
    assert shard.tokens.dtype == VOCABULARIES[vocab_size]
    assert shard.header.num_documents == len(documents)
    assert shard.header.info == INFO | {"vocab_size": vocab_size}
    whole = write(tmp_path / "whole.tok", documents, vocab_size, INFO | {"vocab_size": vocab_size})
    assert whole.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("info_bytes", [0, 3000, 3983, 3984, 3985, 4096, 20_000])
def test_tokens_start_at_a_multiple_of_4096(tmp_path: Path, info_bytes: int) -> None:
    # {"pad":"..."} has 10 bytes besides its value: 96 + 3984 + 16 = 4096 just fits.
    info = {"pad": "x" * max(0, info_bytes - 10)}
    path = write(tmp_path / "shard.tok", [[1, 2, 255]], 256, info)
    header = open_shard(path, verify="full").header
    assert header.tokens_start % ALIGNMENT == 0
    assert header.tokens_start == -(-(96 + max(info_bytes, 10) + 16) // 4096) * 4096
    assert path.read_bytes()[header.tokens_start :][:3] == b"\x01\x02\xff"
    assert header.info == info


def test_arrays_are_read_only_and_outlive_the_shard(small: Path) -> None:
    shard = open_shard(small)
    tokens, offsets = shard.tokens, shard.document_offsets
    del shard
    assert tokens.tolist() == [token for document in GOLDEN_DOCUMENTS for token in document]
    assert offsets.tolist() == np.cumsum([0, *map(len, GOLDEN_DOCUMENTS)]).tolist()
    assert not tokens.flags.writeable
    assert not offsets.flags.writeable


@pytest.mark.parametrize(
    ("vocab_size", "dtype"), [(1, "u1"), (256, "u1"), (257, "<u2"), (65536, "<u2"), (65537, "<u4"), (2**32, "<u4")]
)
def test_ids_have_the_narrowest_type_that_fits_the_vocabulary(vocab_size: int, dtype: str) -> None:
    assert token_dtype(vocab_size) == np.dtype(dtype)
    for wrong in (0, -1, 2**32 + 1):
        with pytest.raises(ValueError, match="vocabulary"):
            token_dtype(wrong)


def test_a_shard_that_was_not_finished_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "shard.tok"
    with path.open("w+b") as file:
        ShardWriter(file, 256, INFO).append(np.zeros(5000, np.uint8), np.array([5000], np.uint32))
    assert path.stat().st_size > ALIGNMENT
    with pytest.raises(FormatError, match="not a shard"):
        open_shard(path)


def refused_positions(path: Path, positions: range, flip: int, verify: str) -> list[int]:
    """Return the positions where a byte XOR `flip` is refused; any error other than FormatError propagates."""
    refused = []
    for position in positions:
        good = path.read_bytes()
        change(path, position, good[position] ^ flip)
        try:
            open_shard(path, verify)
        except FormatError as error:
            assert str(path) in str(error)
            refused.append(position)
        change(path, position, good[position])
    return refused


def change(path: Path, position: int, value: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(bytes([value]))


@pytest.mark.parametrize("flip", [0x01, 0xFF])
def test_any_changed_byte_is_detected_by_full_verification(small: Path, flip: int) -> None:
    positions = range(small.stat().st_size)
    assert refused_positions(small, positions, flip, "full") == list(positions)
    assert read_back(small) == GOLDEN_DOCUMENTS


def test_opening_reads_no_section(small: Path) -> None:
    # The other side of the bargain: "open" costs the same for any length, so it cannot see damage in a section.
    positions = range(ALIGNMENT, small.stat().st_size)
    assert refused_positions(small, positions, 0xFF, "open") == []


def forge(path: Path, offset: int, kind: str, value: int) -> None:
    """Change one field of the header and update its checksum."""
    data = bytearray(path.read_bytes())
    struct.pack_into(kind, data, offset, value)
    data[ALIGNMENT - 16 : ALIGNMENT] = xxhash.xxh3_128_digest(data[: ALIGNMENT - 16])
    path.write_bytes(data)


@pytest.mark.parametrize("version", [0, 2, 2**32 - 1])
def test_other_format_version_is_refused_by_name(small: Path, version: int) -> None:
    forge(small, 8, "<I", version)
    with pytest.raises(FormatError, match=f"shard format {version}; this release reads format 1: update tokenloom"):
        open_shard(small)


@pytest.mark.parametrize(
    ("offset", "kind", "value"),
    [
        (16, "<I", 3),  # token bytes
        (20, "<I", 2**31),  # JSON bytes
        (24, "<Q", 2**40),  # tokens
        (32, "<Q", 6),  # documents
        (40, "<Q", 0),  # where tokens start
        (48, "<Q", 4096),  # where offsets start
        (56, "<Q", 2**63),  # file bytes
    ],
)
def test_header_that_contradicts_itself_is_refused(small: Path, offset: int, kind: str, value: int) -> None:
    forge(small, offset, kind, value)
    with pytest.raises(FormatError):
        open_shard(small)


def test_the_golden_shard_stays_readable_and_is_still_written_to_the_byte(small: Path) -> None:
    # Written once by format 1: every later release must read it, and published SHA-256s depend on the same bytes.
    golden = GOLDEN / "format-1.tok"
    shard = open_shard(golden, verify="full")
    assert read_back(golden) == GOLDEN_DOCUMENTS
    assert shard.header.info == INFO
    assert shard.tokens.dtype == np.uint16
    assert small.read_bytes() == golden.read_bytes()
