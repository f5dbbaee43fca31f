"""Histograms of document lengths: each length is in the bin between whose edges it lies."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.storage.formats.statistics import (
    DocumentCounts,
    add_counts,
    add_sources,
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
    assert add_counts([count_lengths(lengths[:300]), count_lengths(lengths[300:]), []]) == count_lengths(lengths)
    assert add_sources([{"b": DocumentCounts(1, 5)}, {"a": DocumentCounts(2, 3), "b": DocumentCounts(1, 1)}]) == {
        "a": DocumentCounts(2, 3),
        "b": DocumentCounts(2, 6),
    }
