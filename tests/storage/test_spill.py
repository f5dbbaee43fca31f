"""Spills: any range equals a naive filter, and every damaged byte in a range is detected."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.counts import FULL, count
from tokenloom.errors import WorkError
from tokenloom.storage.stores.local import LocalStore
from tokenloom.storage.work.records import SpillCounts, spill_path
from tokenloom.storage.work.segments import as_segments, take_segments
from tokenloom.storage.work.spill import ROW_BITS, TABLE_DTYPE, Spill, SpillDocuments, write_spill

PROPERTY = settings(max_examples=count(60, 2000), suppress_health_check=[HealthCheck.function_scoped_fixture])
LAST_KEY = 2**64 - 1
NAME = "0123456789abcdef"
NUM_SPLITS = 3


class Written(NamedTuple):
    """A spill that was written, and its record."""

    store: LocalStore
    counts: SpillCounts

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.store.local(spill_path(NAME, 0))

    def open(self) -> Spill:
        """Open it, as its record says."""
        return Spill(self.store, NAME, 0, self.counts.bytes, self.counts.checksum)


def tokens_of(spill: Spill, start: int, end: int) -> NDArray[Any]:
    """Return the tokens [start, end) of a spill."""
    return np.concatenate([*spill.tokens(start, end)])


def make_ids(random: np.random.Generator, num_documents: int) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
    """Return the lengths and bytes of random ids, a third of them empty."""
    id_bytes = (random.integers(0, 9, num_documents) * (random.integers(0, 3, num_documents) > 0)).astype(np.uint32)
    return id_bytes, random.integers(97, 123, int(id_bytes.sum())).astype(np.uint8)


def make_documents(
    num_documents: int, key_bits: int, seed: int, dtype: type[np.unsignedinteger[Any]], max_tokens: int = 5
) -> SpillDocuments:
    """Return documents with random splits and with keys of `key_bits` random high bits; few bits repeat keys."""
    random = np.random.default_rng(seed)
    num_tokens = random.integers(0, max_tokens, num_documents, endpoint=True).astype(np.uint32)
    words = random.integers(0, LAST_KEY, (num_documents, 2), dtype=np.uint64, endpoint=True)
    key = random.integers(0, LAST_KEY, num_documents, dtype=np.uint64, endpoint=True) >> np.uint64(64 - key_bits)
    key <<= np.uint64(64 - key_bits)
    ends = random.integers(0, 20, num_documents)
    key[ends == 0], key[ends == 1] = 0, LAST_KEY
    tokens = random.integers(0, np.iinfo(dtype).max, int(num_tokens.sum()), dtype=dtype, endpoint=True)
    split = random.choice(NUM_SPLITS, num_documents, p=random.dirichlet([0.5] * NUM_SPLITS)).astype(np.uint8)
    return SpillDocuments(
        split,
        key,
        words,
        np.arange(num_documents, dtype=np.uint64),
        num_tokens,
        tokens,
        *make_ids(random, num_documents),
    )


def write(folder: Path, documents: SpillDocuments) -> Written:
    store = LocalStore(folder)
    record = write_spill(store, NAME, 0, documents, NUM_SPLITS, {"backend": "test"})
    assert record.bytes == store.num_bytes(spill_path(NAME, 0))
    for i in range(NUM_SPLITS):
        inside = documents.split == i
        assert record.documents[i] == int(inside.sum())
        assert record.tokens[i] == int(documents.num_tokens[inside].sum())
    return Written(store, record)


Row = tuple[int, int, int, int, list[int], str]


def naive(documents: SpillDocuments, split: int, start_key: int, end_key: int) -> list[Row]:
    """The documents of a range in their order, without any index: their keys, contents, rows, tokens, ids."""
    ends = np.cumsum(documents.num_tokens, dtype=np.int64)
    id_ends = np.cumsum(documents.id_bytes, dtype=np.int64)
    ids = [documents.ids[a:b].tobytes().decode() for a, b in zip(id_ends - documents.id_bytes, id_ends, strict=True)]
    rows = zip(
        documents.split.tolist(),
        documents.key.tolist(),
        documents.content.tolist(),
        documents.row.tolist(),
        (ends - documents.num_tokens).tolist(),
        ends.tolist(),
        ids,
        strict=True,
    )
    return sorted(
        (key, high, low, row, documents.tokens[start:end].tolist(), identifier)
        for i, key, (high, low), row, start, end, identifier in rows
        if i == split and start_key <= key < end_key
    )


def read(spill: Spill, split: int, start_key: int, end_key: int) -> list[Row]:
    _, rows = spill.documents(split, start_key, end_key)
    ids = [identifier or "" for identifier in spill.ids(rows).to_pylist()]
    found = []
    for (key, high, low, row, start, _, num_tokens, _), identifier in zip(rows.tolist(), ids, strict=True):
        tokens = tokens_of(spill, start, start + num_tokens).tolist()
        found.append((key, high, low, row, tokens, identifier))
    return found


@PROPERTY
@given(
    st.one_of(st.integers(0, 50), st.sampled_from([1023, 1024, 1025, 2049, *([3073, 5000] if FULL else [])])),
    st.sampled_from([1, 3, 8, 63]),
    st.integers(0, 2**32),
    st.sampled_from([np.uint8, np.uint16, np.uint32]),
    st.booleans(),
    st.data(),
)
def test_any_range_equals_a_naive_filter(
    tmp_path: Path,
    num_documents: int,
    key_bits: int,
    seed: int,
    dtype: type[np.unsignedinteger[Any]],
    is_run: bool,
    data: st.DataObject,
) -> None:
    documents = make_documents(num_documents, key_bits, seed, dtype)
    if is_run:  # few contents, so that the spill decides
        spills = np.random.default_rng(seed).integers(0, 1024, num_documents, dtype=np.uint64)
        row = documents.row | spills << np.uint64(ROW_BITS)
        documents = replace(documents, row=row, content=documents.content % np.uint64(2))
    bounds = st.one_of(
        st.integers(0, 2**64),
        st.sampled_from([0, 1, LAST_KEY, 2**64, *documents.key.tolist(), *(documents.key[:20].astype(object) + 1)]),
    )
    spill = write(tmp_path, documents).open()
    assert spill.dtype == np.dtype(dtype)
    assert spill.info["backend"] == "test"
    for split in range(NUM_SPLITS):
        assert read(spill, split, 0, 2**64) == naive(documents, split, 0, 2**64)
        start_key, end_key = sorted([data.draw(bounds), data.draw(bounds)])
        if start_key < end_key:
            assert read(spill, split, start_key, end_key) == naive(documents, split, start_key, end_key)


def test_any_range_of_tokens_equals_the_written_tokens(tmp_path: Path) -> None:
    documents = big_documents()
    order = np.lexsort((*documents.content.T[::-1], documents.key, documents.split))
    everything = take_segments(as_segments(documents.tokens, documents.num_tokens), order, documents.tokens.dtype)
    random = np.random.default_rng(0)
    spill = write(tmp_path, documents).open()
    for _ in range(200):
        start, end = sorted(random.integers(0, len(everything), 2, endpoint=True).tolist())
        assert np.array_equal(tokens_of(spill, start, end), everything[start:end])
    assert np.array_equal(tokens_of(spill, 0, len(everything)), everything)


def big_documents() -> SpillDocuments:
    """Documents whose table and tokens take several blocks of 128 KiB each."""
    return make_documents(60_000, 63, 5, np.uint16, max_tokens=60)


def read_all(written: Written) -> None:
    """Read every document, every token and every id of the spill."""
    spill = written.open()
    tables: list[NDArray[Any]] = [spill.documents(split, 0, 2**64)[1] for split in range(NUM_SPLITS)]
    end = max(int((table["start"] + table["num_tokens"]).max(initial=0)) for table in tables)
    tokens = tokens_of(spill, 0, end)
    if spill.has_classes:  # in the tests, those of a token are its id
        assert np.array_equal(np.concatenate([*spill.classes(0, end)]), tokens)
    for table in tables:
        spill.ids(table)


def change(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        value = file.read(1)[0]
        file.seek(position)
        file.write(bytes([value ^ 0x10]))


@pytest.mark.parametrize("has_classes", [False, True])
def test_a_small_spill_changed_or_cut_at_any_byte_is_refused(has_classes: bool, tmp_path: Path) -> None:
    documents = make_documents(30, 63, 2, np.uint8)
    written = write(tmp_path, replace(documents, classes=documents.tokens) if has_classes else documents)
    path, data = written.path, written.path.read_bytes()
    said = f"work file damaged: {path}; run the same command again, finished work is kept"
    for position in range(len(data)):
        change(path, position)
        with pytest.raises(WorkError) as caught:
            read_all(written)
        assert str(caught.value) == said
        assert not path.exists()
        path.write_bytes(data[:position])
        with pytest.raises(WorkError):
            written.open()
        path.write_bytes(data)
    read_all(written)


def test_a_changed_byte_in_any_section_of_a_large_spill_is_detected(tmp_path: Path) -> None:
    written = write(tmp_path, big_documents())
    path, data = written.path, written.path.read_bytes()
    num_bytes = len(data)
    (header_bytes,) = struct.unpack_from("<I", path.read_bytes(), 8)
    table_end = header_bytes + 60_000 * TABLE_DTYPE.itemsize
    tokens_end = table_end + 2 * int(big_documents().num_tokens.sum())
    assert tokens_end - table_end > 2**21
    assert num_bytes - tokens_end == len(big_documents().ids) > 2**17
    sections = [(0, header_bytes), (header_bytes, table_end), (table_end, tokens_end), (tokens_end, num_bytes)]
    random = np.random.default_rng(3)
    for start, end in sections:
        for position in [start, end - 1, *random.integers(start, end, count(12, 300)).tolist()]:
            change(path, position)
            with pytest.raises(WorkError):
                read_all(written)
            path.write_bytes(data)
    read_all(written)


def test_damage_outside_a_range_does_not_stop_reading_it(tmp_path: Path) -> None:
    # A checksum covers 128 KiB, so a range costs only the blocks it touches.
    written = write(tmp_path, big_documents())
    path = written.path
    change(path, path.stat().st_size - 1)
    spill = written.open()
    assert len(tokens_of(spill, 0, 100)) == 100
    assert len(spill.documents(0, 0, 2**64)[1]) == spill.num_documents[0]
    with pytest.raises(WorkError):
        read_all(written)
