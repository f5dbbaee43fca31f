"""Histograms of document lengths: each length is in the bin between whose edges it lies."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.storage.formats.statistics import (
    ChatCounts,
    DocumentCounts,
    EncodedCounts,
    added,
    bin_edges,
    count_lengths,
    length_bins,
)


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1))
def test_a_length_is_between_the_edges_of_its_bin(lengths: list[int]) -> None:
    bins = length_bins(np.array(lengths, np.uint32))
    edges = bin_edges(300)
    assert (edges[bins] <= lengths).all()
    assert (lengths < edges[bins + 1]).all()
    assert (np.diff(edges) > 0).all()


def test_small_lengths_have_a_bin_each_and_larger_ones_eighths_of_a_power_of_two() -> None:
    assert length_bins(np.arange(20, dtype=np.uint32)).tolist() == [*range(16), 16, 16, 17, 17]
    assert bin_edges(18).tolist() == [*range(17), 18, 20]


def test_histograms_and_sources_add_up() -> None:
    lengths = np.random.default_rng(0).integers(1, 10**6, 1000).astype(np.uint32)
    assert added([count_lengths(lengths[:300]), count_lengths(lengths[300:]), []], []) == count_lengths(lengths)
    sources = [{"b": DocumentCounts(1, 5)}, {"a": DocumentCounts(2, 3), "b": DocumentCounts(1, 1)}]
    assert added(sources, {}) == {"a": DocumentCounts(2, 3), "b": DocumentCounts(2, 6)}
    encoded = [EncodedCounts(1, 2, 3), EncodedCounts(1, 1, 1, ChatCounts(2), 4), EncodedCounts(0, 0, 0, ChatCounts(1))]
    assert added(encoded, None) == EncodedCounts(2, 3, 4, ChatCounts(3), 4)
    assert added([None], 7) == 7
