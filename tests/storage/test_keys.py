"""Properties of the hashes that decide a document's place, and their golden values."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.counts import count
from tokenloom.storage.formats.keys import (
    KEY_SPACE,
    SEED_SPACE,
    Purpose,
    content_hashes,
    equal_part,
    mix64,
    order_keys,
    order_keys_with_duplicates,
    split_bounds,
    split_indices,
)

PROPERTY = settings(deadline=None, database=None, max_examples=count(100, 5000))
WORDS = st.integers(0, KEY_SPACE - 1)
SEEDS = st.integers(0, SEED_SPACE - 1)
CONTENTS = st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=20)
NAMES = ["train", "validation", "test", "held_out"]


@st.composite
def shares(draw: st.DrawFn) -> list[tuple[str, float]]:
    """Shares of one to four splits in any order, which add up to about 1."""
    weights = draw(st.lists(st.integers(1, 1_000_000), min_size=1, max_size=4))
    names = draw(st.permutations(NAMES[: len(weights)]))
    return [(name, weight / sum(weights)) for name, weight in zip(names, weights, strict=True)]


def array(content: list[tuple[int, int]]) -> NDArray[np.uint64]:
    return np.array(content, dtype=np.uint64).reshape(-1, 2)


def reference_mix(purpose: int, seed: int, words: list[int]) -> int:
    """The hash in plain Python integers, written from its description."""
    mask, state = 2**64 - 1, 0
    for word in [(purpose << 56) + seed, *words]:
        state = ((state ^ word) + 0x9E3779B97F4A7C15) & mask
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
        state ^= state >> 31
    return state


def test_golden_values_of_one_document_never_change() -> None:
    # Every shard, split and version ever built depends on these numbers. Another value here means that the same
    # inputs make other bytes, and that documents move between train and test. That is a new format version.
    text = "tokenloom: żółw 🐢\n".encode()
    content = content_hashes(text, np.array([0, len(text)]))
    duplicated = order_keys_with_duplicates(content, 7, "xxh3_128:00", np.array([3], np.uint64))
    values = {
        "content": content[0],
        "order, seed 0": order_keys(content, 0),
        "order, seed 7": order_keys(content, 7),
        "order with duplicates": duplicated,
        "split": mix64(Purpose.SPLIT, 0, (content[:, 0], content[:, 1])),
    }
    assert {name: [f"{value:016x}" for value in words.tolist()] for name, words in values.items()} == {
        "content": ["cce2cda20f498fb3", "9229f4ee48044759"],
        "order, seed 0": ["c5ac526d3e1fb17b"],
        "order, seed 7": ["0c200ad6bc154ffe"],
        "order with duplicates": ["bcab1b9d5f8e27a4"],
        "split": ["f13cc5db4e6ab442"],
    }


@PROPERTY
@given(st.lists(st.binary(max_size=30), max_size=10))
def test_each_content_hash_is_the_xxh3_128_of_one_text(texts: list[bytes]) -> None:
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    hashes = content_hashes(b"".join(texts), offsets)
    assert hashes.shape == (len(texts), 2)
    assert [high << 64 | low for high, low in hashes.tolist()] == [xxhash.xxh3_128_intdigest(t) for t in texts]


@PROPERTY
@given(st.sampled_from(Purpose), SEEDS, CONTENTS)
def test_vectorised_mix_equals_plain_integers(purpose: Purpose, seed: int, content: list[tuple[int, int]]) -> None:
    columns = array(content)
    mixed = mix64(purpose, seed, (columns[:, 0], columns[:, 1]))
    assert mixed.dtype == np.uint64
    assert mixed.tolist() == [reference_mix(purpose, seed, [high, low]) for high, low in content]


@PROPERTY
@given(SEEDS, CONTENTS, st.text(max_size=20), st.data())
def test_keys_with_duplicates_fold_file_and_row(
    seed: int, content: list[tuple[int, int]], fingerprint: str, data: st.DataObject
) -> None:
    rows = data.draw(st.lists(WORDS, min_size=len(content), max_size=len(content)))
    keys = order_keys_with_duplicates(array(content), seed, fingerprint, np.array(rows, np.uint64))
    source = xxhash.xxh3_128_intdigest(fingerprint.encode())
    halves = [source >> 64, source % KEY_SPACE]
    expected = [reference_mix(1, seed, [*pair, *halves, row]) for pair, row in zip(content, rows, strict=True)]
    assert keys.tolist() == expected


@pytest.mark.parametrize("seed", [-1, SEED_SPACE])
def test_seed_outside_its_range_is_refused(seed: int) -> None:
    with pytest.raises(ValueError, match="seed"):
        order_keys(array([(1, 2)]), seed)


@PROPERTY
@given(shares())
def test_split_bounds_partition_the_key_space_exactly(shares: list[tuple[str, float]]) -> None:
    bounds = split_bounds(shares)
    assert sorted(i for i, _, _ in bounds) == list(range(len(shares)))
    assert bounds[0][1] == 0
    assert bounds[-1][2] == KEY_SPACE
    for (_, start, end), (_, following, _) in itertools.pairwise(bounds):
        assert start <= end == following
    assert bounds[-1][1] <= bounds[-1][2]
    for i, start, end in bounds:
        assert (end - start) / KEY_SPACE == pytest.approx(shares[i][1], abs=1e-9)


def test_splits_take_exact_intervals_from_zero_in_the_written_order_and_train_takes_the_rest() -> None:
    # 0.1 + 0.2 in floating point is above 0.3; the bound is the exact fraction, cut to an integer.
    expected = [(0, 0, KEY_SPACE // 10), (2, KEY_SPACE // 10, 3 * KEY_SPACE // 10), (1, 3 * KEY_SPACE // 10, KEY_SPACE)]
    assert split_bounds([("test", 0.1), ("train", 0.7), ("validation", 0.2)]) == expected


@PROPERTY
@given(shares(), CONTENTS)
def test_the_split_is_the_interval_that_contains_the_split_value(
    shares: list[tuple[str, float]], content: list[tuple[int, int]]
) -> None:
    found = split_indices(array(content), shares).tolist()
    for (high, low), index in zip(content, found, strict=True):
        value = reference_mix(Purpose.SPLIT, 0, [high, low])
        assert [i for i, start, end in split_bounds(shares) if start <= value < end] == [index]


@pytest.mark.parametrize("shares", [[("test", 1.0), ("train", 1e-7)], [("train", 1e-7), ("a", 0.5), ("test", 0.5)]])
def test_a_train_share_that_rounds_to_zero_gets_no_documents(shares: list[tuple[str, float]]) -> None:
    content = np.arange(2000, dtype=np.uint64).reshape(-1, 2)
    names = {shares[i][0] for i in split_indices(content, shares).tolist()}
    assert names == {name for name, share in shares if share > 0.1}


@PROPERTY
@given(st.data())
def test_equal_parts_cover_the_range_without_gap_or_overlap(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, KEY_SPACE - 1))
    end = data.draw(st.integers(start + 1, KEY_SPACE))
    num_parts = data.draw(st.integers(1, 200))
    parts = [equal_part(i, num_parts, start, end) for i in range(num_parts)]
    assert parts[0][0] == start
    assert parts[-1][1] == end
    assert [part_end for _, part_end in parts[:-1]] == [part_start for part_start, _ in parts[1:]]
    widths = [part_end - part_start for part_start, part_end in parts]
    assert max(widths) - min(widths) <= 1
