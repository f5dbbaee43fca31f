"""The order of samples: golden values; it permutes, mixes and reads blocks as docs/concepts/order.md defines."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.counts import count
from tests.docs.test_order_page import the_page
from tokenloom.reader.streams.order import ORDER_VERSION, ORDERS, Order, Orders, permute
from tokenloom.storage.formats.keys import Purpose, mix64

_MASK = 2**64 - 1
_COUNTS = st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any)
_RUN = settings(max_examples=count(60, 1000), deadline=None)


def keys_of(seed: int, epoch: int, number: int) -> NDArray[np.uint64]:
    """Return (number,) keys as an epoch derives them."""
    return mix64(Purpose.SAMPLE_ORDER, seed, (np.full(1, epoch, np.uint64), np.arange(number, dtype=np.uint64)))


def epoch_of(order: Order, epoch: int) -> list[int]:
    """Return the samples of one epoch."""
    n = order.num_samples
    samples: list[int] = order.samples(np.arange(epoch * n, (epoch + 1) * n)).tolist()
    return samples


# ---- golden values: a job that resumes from a state of last year must get the same samples. If one of these changes,
# the order has changed: raise ORDER_VERSION (old states are refused) and note it in CHANGELOG.md, or undo it.


@pytest.mark.parametrize(
    ("size", "key", "expected"),
    [
        (1, 5, [0]),
        (2, 1, [1, 0]),
        (3, 0, [2, 0, 1]),
        (10, 0, [6, 5, 1, 2, 4, 8, 3, 7, 0, 9]),
        (10, 2**64 - 1, [1, 5, 8, 4, 0, 9, 6, 7, 2, 3]),
        (16, 123456789, [12, 10, 8, 3, 9, 11, 0, 14, 4, 1, 6, 2, 13, 15, 5, 7]),
        (17, 123456789, [8, 3, 0, 7, 6, 9, 12, 11, 1, 16, 2, 10, 15, 5, 14, 4, 13]),
    ],
)
def test_permutations_of_order_version_1_are_pinned(size: int, key: int, expected: list[int]) -> None:
    assert ORDER_VERSION == 1
    assert permute(np.arange(size), size, key).tolist() == expected


def test_places_in_large_permutations_of_order_version_1_are_pinned() -> None:
    positions = np.array([0, 1, 2, 999_999])
    assert permute(positions, 10**6, 7).tolist() == [458812, 717081, 902610, 478844]
    assert permute(positions, 2**48, 7).tolist() == [242760113683454, 182532035047722, 130953896697848, 252004280067535]


_GOLDEN_COUNTS = [5, 0, 3, 9, 1, 4]  # 22 samples


@pytest.mark.parametrize(
    ("name", "lanes", "epoch", "expected"),
    [
        ("block", None, 0, [6, 10, 16, 14, 17, 21, 5, 13, 11, 8, 19, 20, 7, 9, 15, 12, 18, 1, 2, 4, 3, 0]),
        ("block", None, 1, [16, 11, 15, 17, 20, 2, 12, 8, 10, 21, 19, 3, 14, 9, 13, 18, 0, 1, 4, 5, 7, 6]),
        ("block", 1, 0, [6, 5, 7, 10, 13, 9, 16, 11, 15, 14, 8, 12, 17, 19, 18, 21, 20, 1, 2, 4, 3, 0]),
        ("block", 4, 0, [6, 9, 8, 21, 5, 16, 12, 20, 7, 11, 17, 1, 10, 15, 19, 2, 13, 14, 18, 4, 3, 0]),
        ("block", 4, 10**6, [6, 1, 20, 10, 7, 4, 19, 15, 5, 0, 16, 12, 3, 18, 14, 9, 2, 21, 13, 11, 8, 17]),
        ("full", None, 0, [6, 12, 8, 5, 20, 14, 1, 15, 21, 9, 3, 13, 18, 16, 17, 11, 7, 2, 0, 19, 10, 4]),
        ("full", None, 2, [5, 16, 13, 9, 2, 18, 4, 15, 7, 19, 3, 8, 20, 6, 12, 10, 17, 21, 14, 11, 1, 0]),
        ("sequential", None, 3, list(range(22))),
    ],
)
def test_orders_of_order_version_1_are_pinned(name: str, lanes: int | None, epoch: int, expected: list[int]) -> None:
    assert ORDER_VERSION == 1
    assert epoch_of(Order(name, np.array(_GOLDEN_COUNTS), 42, lanes), epoch) == expected


# ---- a permutation


@_RUN
@given(st.integers(1, 2**48), st.integers(0, _MASK), st.integers(0, 2**32))
def test_large_sizes_stay_in_range_and_move_no_two_positions_to_one_place(size: int, key: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    near = np.concatenate([np.arange(500), size - 1 - np.arange(500), size // 2 + np.arange(-250, 250)])
    positions = np.unique(np.concatenate([near[(near >= 0) & (near < size)], rng.integers(0, size, 2000)]))
    moved = permute(positions, size, key)
    assert moved.min() >= 0
    assert moved.max() < size
    assert len(np.unique(moved)) == len(positions)
    assert (permute(moved, size, key, inverse=True) == positions).all()


@_RUN
@given(st.integers(1, 2**48), st.integers(0, _MASK), st.data())
def test_a_permutation_is_the_walk_over_a_grid_that_the_docs_define(size: int, key: int, data: st.DataObject) -> None:
    positions = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=8))
    assert permute(np.array(positions), size, key).tolist() == [the_page().permute(p, size, key) for p in positions]


# ---- well mixed: the excess of chi-square over its mean, in standard deviations; seeds are fixed, 5 is beyond chance.
# With 2, 4, 8 and 16 rounds, permutations of 5 score 2307, 472, 26 and 0.1.
_LIMIT = 5.0


def excess(observed: NDArray[np.int64]) -> float:
    """Return by how many standard deviations the chi-square of equally likely cells exceeds its mean."""
    expected = observed.sum() / len(observed)
    assert expected > 5, "too few for chi-square"
    degrees = len(observed) - 1
    return float((((observed - expected) ** 2 / expected).sum() - degrees) / math.sqrt(2 * degrees))


def excess_of_permutations(size: int, keys: NDArray[np.uint64]) -> float:
    """Return the excess over all permutations of [0, size), with one draw per key."""
    moved = permute(np.tile(np.arange(size), len(keys)), size, np.repeat(keys, size)).reshape(len(keys), size)
    codes, seen = np.unique(moved @ size ** np.arange(size), return_counts=True)
    return excess(np.concatenate([seen, np.zeros(math.factorial(size) - len(codes), dtype=np.int64)]))


@pytest.mark.parametrize("size", [3, 4, 5])
def test_every_permutation_is_as_likely_as_any_other(size: int) -> None:
    for seed, epoch in ((0, 0), (1, 0), (0, 1), (2**56 - 1, 10**6)):
        assert excess_of_permutations(size, keys_of(seed, epoch, 20_000)) < _LIMIT
    over_epochs = [keys_of(5, epoch, 1) for epoch in range(3000)]
    assert excess_of_permutations(size, np.concatenate(over_epochs)) < _LIMIT
    over_seeds = [keys_of(seed, 0, 1) for seed in range(3000)]
    assert excess_of_permutations(size, np.concatenate(over_seeds)) < _LIMIT


# ---- the orders


@_RUN
@given(_COUNTS, st.integers(0, 2**56 - 1), st.integers(0, 10**6), st.integers(1, 100) | st.none())
def test_block_and_full_order_are_what_the_page_computes(
    counts: list[int], seed: int, epoch: int, lanes: int | None
) -> None:
    order = Order("block", np.array(counts), seed, lanes)
    assert order.lanes == (lanes or min(64, len(counts)))
    assert epoch_of(order, epoch) == the_page().block(counts, seed, epoch, order.lanes)
    assert epoch_of(Order("full", np.array(counts), seed), epoch) == the_page().full(counts, seed, epoch)


@_RUN
@given(st.sampled_from(ORDERS), _COUNTS, st.integers(0, 1000), st.integers(1, 600) | st.none(), st.integers(0, 99))
def test_an_epoch_has_every_sample_once_whatever_positions_are_requested_together(
    name: str, counts: list[int], seed: int, lanes: int | None, epoch: int
) -> None:
    order = Order(name, np.array(counts), seed, lanes)
    n = sum(counts)
    assert order.num_samples == n
    epochs = epoch_of(order, epoch) + epoch_of(order, epoch + 1)
    assert sorted(epochs[:n]) == sorted(epochs[n:]) == list(range(n))
    picked = np.random.default_rng(seed).integers(epoch * n, (epoch + 2) * n, 50)
    assert Order(name, np.array(counts), seed, lanes).samples(picked).tolist() == [
        epochs[p - epoch * n] for p in picked
    ]
    assert order.samples(np.zeros(0, dtype=np.int64)).tolist() == []


@_RUN
@given(st.sampled_from(ORDERS), st.lists(st.tuples(_COUNTS, st.integers(1, 9)), min_size=1, max_size=5), st.data())
def test_samples_of_many_splits_are_those_of_each_one_after_the_other(
    name: str, splits: list[tuple[list[int], int]], data: st.DataObject
) -> None:
    orders = [Order(name, np.array(counts), 7, lanes) for counts, lanes in splits]
    firsts = np.cumsum([0, *(order.num_samples for order in orders)]).tolist()
    joint = Orders(orders)
    for _ in range(3):  # the layouts of some epochs are kept
        pairs = data.draw(st.lists(st.tuples(st.integers(0, len(orders) - 1), st.integers(0, 99)), max_size=30))
        numbers, positions = np.array(pairs, np.int64).reshape(-1, 2).T
        expected = [firsts[split] + orders[split].samples(np.array([position]))[0] for split, position in pairs]
        assert joint.samples(numbers, positions).tolist() == expected


@_RUN
@given(st.lists(st.integers(0, 60), min_size=8, max_size=40).filter(lambda x: sum(x) > 50), st.integers(0, 10**6))
def test_a_lane_reads_only_its_own_run_of_shards_and_shares_only_border_shards(counts: list[int], seed: int) -> None:
    order = Order("block", np.array(counts), seed, lanes=4)
    shard_of = np.repeat(np.arange(len(counts)), counts)
    samples = np.array(epoch_of(order, 1))
    run = len(samples) // 4
    lanes = [shard_of[samples[: run * 4][lane::4]] for lane in range(4)]
    touched = [set(lane.tolist()) for lane in lanes]
    for lane, shards in zip(lanes, touched, strict=True):
        assert np.count_nonzero(np.diff(lane)) == len(shards) - 1  # shard by shard: a lane never returns to a shard
    shared = sum(len(shards) for shards in touched) - len(set.union(*touched))
    assert shared <= 3  # at each of the three borders, at most one shard lies on both sides


def test_orders_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="seed must be below"):
        Order("full", np.array([3, 4]), 2**56)
    with pytest.raises(ValueError, match=r"281474976710657 samples are too many: an order has at most 2\*\*48"):
        Order("full", np.array([2**48, 1]), 0)
    assert Order("full", np.array([2**48]), 0).samples(np.array([2**48 - 1])).tolist()[0] < 2**48
