"""The order of samples: pure functions of (sample counts, seed, order, lanes, epoch, position). docs/order.md shows it.

A position of the endless stream is `epoch * num_samples + position in the epoch`. The order of an epoch costs memory
by its shards and none by its samples: samples are moved by a keyed permutation of [0, n), a Feistel network over
Z_a x Z_b with a * b just above n, which walks the few cycles that leave [0, n) (Black and Rogaway, "Ciphers with
arbitrary finite domains", CT-RSA 2002).

Golden values in tests/reader/test_order.py pin it: a change here is a new ORDER_VERSION.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.reader.arguments import choice, whole
from tokenloom.storage.formats.keys import Purpose, UInt64s, mix64

ORDER_VERSION = 1
ORDERS = ("block", "full", "sequential")
DEFAULT_LANES = 64
MAX_SAMPLES = 2**48
_ROUNDS = 16  # with 8, permutations of 5 are uneven (chi-square 5.0 a degree of freedom); with 16 it is 1.07
_32 = np.uint64(32)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)

Int64s = NDArray[np.int64]


def permute(positions: Int64s, counts: Any, keys: Any) -> Int64s:
    """Return where a keyed permutation of [0, count) moves each position.

    Args:
        positions: (n,), each in [0, its count).
        counts: one number or (n,) of them, in [1, 2**48].
        keys: one 64-bit key or (n,) of them; each (count, key) is a permutation of its own.

    Returns:
        (n,) int64; for one count and key, different positions go to different places.
    """
    count, key = (np.broadcast_to(np.asarray(x, dtype=np.uint64), positions.shape) for x in (counts, keys))
    width = np.ceil(np.sqrt(count)).astype(np.uint64)  # exact below 2**52
    height = (count + width - np.uint64(1)) // np.maximum(width, np.uint64(1))
    moved = _feistel(positions.astype(np.uint64), width, height, key)
    outside = np.flatnonzero(moved >= count)
    while len(outside):
        moved[outside] = _feistel(moved[outside], width[outside], height[outside], key[outside])
        outside = outside[moved[outside] >= count[outside]]
    return moved.astype(np.int64)


def _feistel(value: UInt64s, width: UInt64s, height: UInt64s, key: UInt64s) -> UInt64s:
    """Return a bijection of [0, width * height): rounds that move one coordinate by a hash of the other."""
    left, right = np.divmod(value, height)
    for _ in range(_ROUNDS // 2):
        key = key + _GOLDEN
        _shift(left, width, right, key)
        key = key + _GOLDEN
        _shift(right, height, left, key)
    return left * height + right


def _shift(value: UInt64s, limit: UInt64s, other: UInt64s, key: UInt64s) -> None:
    """Move `value` within [0, limit), limit at most 2**24 + 1, by a hash of `other`, in place."""
    state = (other + key) * _M1
    state ^= state >> _32
    state *= _M2
    state >>= _32
    state *= limit
    state >>= _32
    value += state
    np.minimum(value, value - limit, out=value)  # of what is below the limit, value - limit wraps around


def epoch_keys(purpose: Purpose, seed: int, epoch: int, words: UInt64s) -> UInt64s:
    """Return the (n,) keys of an epoch, one for each of (n,) words."""
    return mix64(purpose, seed, (np.array([epoch], dtype=np.uint64), words))


class EpochLayout:
    """The shards of one epoch, permuted and laid end to end.

    Args:
        counts: (num_shards,) samples of each shard.
        seed: in [0, 2**56).
        epoch: from 0.
    """

    def __init__(self, counts: Int64s, seed: int, epoch: int) -> None:
        num_shards = len(counts)
        zero = np.zeros(1, dtype=np.uint64)
        key = epoch_keys(Purpose.SHARD_ORDER, seed, epoch, zero)[0]
        #: (num_shards,) the shard at each place
        self.shards = permute(np.arange(num_shards, dtype=np.int64), max(1, num_shards), key)
        #: (num_shards,) samples up to and with each place
        self.ends = np.cumsum(counts[self.shards], dtype=np.int64)
        self.keys = epoch_keys(Purpose.SAMPLE_ORDER, seed, epoch, np.arange(num_shards, dtype=np.uint64))


class Order:
    """The order of a split's samples over the endless stream.

    Args:
        name: "block", "full" or "sequential".
        counts: (num_shards,) samples of each shard, in natural order.
        seed: in [0, 2**56).
        lanes: runs that "block" reads side by side, at least 1; None for min(64, number of shards).

    Raises:
        ValueError: no such order, a seed or number of lanes out of range, or over 2**48 samples.
    """

    def __init__(self, name: str, counts: Int64s, seed: int, lanes: int | None = None) -> None:
        self.name, self.seed = choice("order", name, ORDERS), whole("seed", seed, 0, 2**56)
        self.lanes = min(DEFAULT_LANES, max(1, len(counts))) if lanes is None else whole("lanes", lanes, 1)
        self.num_samples = int(counts.sum())
        if self.num_samples > MAX_SAMPLES:
            raise ValueError(f"{self.num_samples} samples; an order has at most 2**48")
        self._counts = counts
        self._firsts = np.cumsum(counts) - counts  # (num_shards,) natural index of each shard's first sample
        self._layout: Callable[[int], EpochLayout] = lru_cache(2)(lambda epoch: EpochLayout(counts, self.seed, epoch))

    def samples(self, positions: Int64s) -> Int64s:
        """Return the natural indices, in [0, num_samples), of the samples at (n,) positions of the stream."""
        if not len(positions):
            return positions
        epochs, places = np.divmod(positions, self.num_samples)
        if epochs.min() == epochs.max():
            return self._epoch_samples(int(epochs[0]), places)
        found = np.empty_like(positions)
        for epoch in np.unique(epochs).tolist():
            there = epochs == epoch
            found[there] = self._epoch_samples(epoch, places[there])
        return found

    def _epoch_samples(self, epoch: int, places: Int64s) -> Int64s:
        if self.name == "sequential":
            return places
        if self.name == "full":
            key = epoch_keys(Purpose.SAMPLE_ORDER, self.seed, epoch, np.full(1, 2**64 - 1, dtype=np.uint64))[0]
            return permute(places, self.num_samples, key)
        return self._block(self._layout(epoch), places)

    def _block(self, layout: EpochLayout, places: Int64s) -> Int64s:
        run = self.num_samples // self.lanes  # samples of a lane
        in_lanes = places < run * self.lanes
        line = np.where(in_lanes, places % self.lanes * run + places // self.lanes, places)
        place = np.searchsorted(layout.ends, line, side="right")
        shard = layout.shards[place]
        count = self._counts[shard]
        local = line - (layout.ends[place] - count)
        return self._firsts[shard] + permute(local, count, layout.keys[shard])
