"""The order of samples: pure functions of (sample counts, seed, order, lanes, epoch, position), with their inverses.

docs/concepts/order.md defines it. A position of the endless stream is `epoch * num_samples + position in the epoch`.
The memory that the order of an epoch takes grows with the number of shards, not of samples: a keyed permutation moves
the samples. It is a Feistel network over Z_a x Z_b, with a * b at least n and little more. A result outside [0, n) goes
through the network again until it is inside (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002).

Golden values in tests/reader/test_order.py pin all of it: a change here is a new ORDER_VERSION.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tokenloom.errors import checked_choice, checked_int
from tokenloom.storage.formats.arrays import Int64s, UInt64s
from tokenloom.storage.formats.keys import Purpose, mix64

_ROUNDS = 16  # with 8, permutations of 5 are uneven (chi-square 5.0 per degree of freedom); with 16 it is 1.07
_32 = np.uint64(32)
_ROUND_KEYS = np.arange(1, _ROUNDS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # added to the key
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
ORDER_VERSION = 1
ORDERS = ("block", "full", "sequential")
DEFAULT_LANES = 64
MAX_SAMPLES = 2**48


def permute(
    positions: Int64s, counts: Int64s | int, keys: UInt64s | np.uint64 | int, *, inverse: bool = False
) -> Int64s:
    """Move each position as a keyed permutation of [0, count) does.

    Args:
        positions: (n,), each in [0, its count).
        counts: one count or (n,) of them, in [1, 2**48].
        keys: one 64-bit key or (n,) of them; each (count, key) is another permutation.
        inverse: whether to find the positions that move to these places.

    Returns:
        (n,) int64; with one count and key, different positions move to different places.
    """
    count, key = (np.broadcast_to(np.asarray(x, dtype=np.uint64), positions.shape) for x in (counts, keys))
    width = np.ceil(np.sqrt(count)).astype(np.uint64)  # exact below 2**52
    height = (count + width - np.uint64(1)) // np.maximum(width, np.uint64(1))
    moved = _feistel(positions.astype(np.uint64), width, height, key, inverse=inverse)
    outside = np.flatnonzero(moved >= count)
    while len(outside):
        moved[outside] = _feistel(moved[outside], width[outside], height[outside], key[outside], inverse=inverse)
        outside = outside[moved[outside] >= count[outside]]
    return moved.astype(np.int64)


def _feistel(value: UInt64s, width: UInt64s, height: UInt64s, key: UInt64s, *, inverse: bool) -> UInt64s:
    """Apply a bijection of [0, width * height), or its inverse: its rounds in reverse, each of which moves back.

    Each round moves one coordinate, within its limit of at most 2**24 + 1, by a hash of the other.
    """
    left, right = np.divmod(value, height)
    rounds = [(left, width, right), (right, height, left)] * (_ROUNDS // 2)
    for number in reversed(range(_ROUNDS)) if inverse else range(_ROUNDS):
        moved, limit, other = rounds[number]
        distance = key + _ROUND_KEYS[number]
        distance += other
        distance *= _M1
        distance ^= distance >> _32
        distance *= _M2
        distance >>= _32
        distance *= limit
        distance >>= _32
        moved += limit - distance if inverse else distance
        np.minimum(moved, moved - limit, out=moved)  # a value below the limit wraps around and stays
    return left * height + right


class EpochLayout:
    """The shards of one epoch, permuted and laid end to end.

    Args:
        counts: (num_shards,) samples in each shard.
        seed: in [0, 2**56).
        epoch: from 0.
    """

    def __init__(self, counts: Int64s, seed: int, epoch: int) -> None:
        num_shards = len(counts)
        number, indices = np.full(1, epoch, dtype=np.uint64), np.arange(num_shards, dtype=np.uint64)
        key = mix64(Purpose.SHARD_ORDER, seed, (number, np.zeros(1, dtype=np.uint64)))[0]
        #: (num_shards,) the shard at each place
        self.shards = permute(np.arange(num_shards, dtype=np.int64), max(1, num_shards), key)
        #: (num_shards,) the number of samples at each place and before
        self.ends = np.cumsum(counts[self.shards], dtype=np.int64)
        self.keys = mix64(Purpose.SAMPLE_ORDER, seed, (number, indices))


class Moves(NamedTuple):
    """What leads to n samples: sample i is bases[i] + permute(places[i], counts[i], keys[i]).

    The permutation takes as long for a few samples as for hundreds, so those of many members are moved together.
    """

    bases: Int64s
    places: Int64s
    counts: Int64s
    keys: UInt64s


def samples_of(moves: Sequence[Moves]) -> list[Int64s]:
    """Compute the natural indices of the samples of each, (n,)."""
    if not moves:
        return []
    bases, *columns = (np.concatenate(column) for column in zip(*moves, strict=True))
    samples = bases + permute(*columns)
    return np.split(samples, np.cumsum([len(each.places) for each in moves])[:-1])


class Order:
    """The order of a split's samples over the endless stream.

    Args:
        name: "block", "full" or "sequential".
        counts: (num_shards,) samples in each shard, in natural order.
        seed: in [0, 2**56).
        lanes: how many runs of shards "block" reads side by side, at least 1; None for min(64, number of shards).

    Raises:
        ValueError: the order is unknown, the seed or the lanes are out of range, or there are over 2**48 samples.
    """

    def __init__(self, name: str, counts: Int64s, seed: int, lanes: int | None = None) -> None:
        self.name, self.seed = checked_choice("order", name, ORDERS), checked_int("seed", seed, 0, 2**56)
        self.lanes = min(DEFAULT_LANES, max(1, len(counts))) if lanes is None else checked_int("lanes", lanes, 1)
        self.num_samples = int(counts.sum())
        if self.num_samples > MAX_SAMPLES:
            raise ValueError(f"{self.num_samples} samples are too many: an order has at most 2**48")
        self._counts = counts
        self._firsts = np.cumsum(counts) - counts  # (num_shards,) natural index of each shard's first sample
        self._layout: Callable[[int], EpochLayout] = lru_cache(2)(lambda epoch: EpochLayout(counts, self.seed, epoch))

    def samples(self, positions: Int64s) -> Int64s:
        """Map (n,) positions of the stream to the natural indices of their samples, in [0, num_samples)."""
        return samples_of([self.moves(positions)])[0]

    def moves(self, positions: Int64s) -> Moves:
        """Find what leads from (n,) positions of the stream to their samples."""
        epochs, places = np.divmod(positions, self.num_samples)
        if self.name == "sequential":
            return Moves(places, np.zeros_like(places), np.ones_like(places), np.zeros(len(places), np.uint64))
        bases, moved, counts = (np.zeros_like(places) for _ in range(3))
        moves = Moves(bases, moved, counts, np.zeros(len(places), np.uint64))
        for epoch in sorted({*epochs.tolist()}):
            of_epoch = epochs == epoch
            found = self._full(epoch, places[of_epoch]) if self.name == "full" else self._block(epoch, places[of_epoch])
            for whole, part in zip(moves, found, strict=True):
                whole[of_epoch] = part
        return moves

    def _full(self, epoch: int, places: Int64s) -> Moves:
        zero = np.zeros_like(places)
        return Moves(zero, places, zero + self.num_samples, np.repeat(self._full_key(epoch), len(places)))

    def _full_key(self, epoch: int) -> UInt64s:
        words = np.full(1, epoch, dtype=np.uint64), np.full(1, 2**64 - 1, dtype=np.uint64)
        return mix64(Purpose.SAMPLE_ORDER, self.seed, words)  # (1,)

    def _block(self, epoch: int, places: Int64s) -> Moves:
        layout = self._layout(epoch)
        run = self.num_samples // self.lanes  # samples in a lane
        in_lanes = places < run * self.lanes
        line = np.where(in_lanes, places % self.lanes * run + places // self.lanes, places)
        place = np.searchsorted(layout.ends, line, side="right")
        shard = layout.shards[place]
        count = self._counts[shard]
        local = line - (layout.ends[place] - count)
        return Moves(self._firsts[shard], local, count, layout.keys[shard])

    def positions(self, samples: Int64s, epoch: int) -> Int64s:
        """Map (n,) samples to their positions of the stream in an epoch: the inverse of `samples`."""
        places = samples
        if self.name == "full":
            places = permute(samples, self.num_samples, self._full_key(epoch), inverse=True)
        elif self.name == "block":
            places = self._unblock(self._layout(epoch), samples)
        return epoch * self.num_samples + places

    def _unblock(self, layout: EpochLayout, samples: Int64s) -> Int64s:
        shard = np.searchsorted(self._firsts + self._counts, samples, side="right")
        count = self._counts[shard]
        local = permute(samples - self._firsts[shard], count, layout.keys[shard], inverse=True)
        line = layout.ends[np.argsort(layout.shards)[shard]] - count + local
        run = self.num_samples // self.lanes  # samples in a lane
        in_lane, lane = line % max(1, run), line // max(1, run)
        return np.where(line < run * self.lanes, in_lane * self.lanes + lane, line)
