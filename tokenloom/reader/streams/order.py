"""The order of samples: pure functions of (sample counts, seed, order, lanes, epoch, position), with their inverses.

docs/concepts/order.md defines it. A position of the endless stream is `epoch * num_samples + position in the epoch`.
The memory that the order of an epoch takes grows with the number of shards, not of samples: a keyed permutation moves
the samples. It is a Feistel network over Z_a x Z_b, with a * b at least n and little more. A result outside [0, n) goes
through the network again until it is inside (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002).

Golden values in tests/reader/test_order.py pin all of it: a change here is a new ORDER_VERSION.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tokenloom.errors import checked_choice, checked_int
from tokenloom.storage.formats.arrays import Int64s, UInt64s, ranges
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
        lanes = min(DEFAULT_LANES, max(1, len(counts))) if lanes is None else checked_int("lanes", lanes, 1)
        self.num_samples = int(counts.sum())
        if self.num_samples > MAX_SAMPLES:
            raise ValueError(f"{self.num_samples} samples are too many: an order has at most 2**48")
        # The other orders have one lane, and "full" permutes all samples as those of one shard.
        self.lanes = lanes if name == "block" else 1
        self.counts: Int64s = counts if name == "block" else np.array([self.num_samples])

    def samples(self, positions: Int64s) -> Int64s:
        """Map (n,) positions of the stream to the natural indices of their samples, in [0, num_samples)."""
        return Orders([self]).samples(np.zeros_like(positions), positions)

    def positions(self, samples: Int64s, epoch: int) -> Int64s:
        """Map (n,) samples to their positions of the stream in an epoch: the inverse of `samples`."""
        if self.name == "sequential":
            return epoch * self.num_samples + samples
        layout = lay_out([self], [epoch])[0]
        place = np.argsort(layout.shards)[np.searchsorted(np.cumsum(self.counts), samples, side="right")]
        count = layout.counts[place]
        local = permute(samples - layout.firsts[place], count, layout.keys[place], inverse=True)
        line = np.cumsum(layout.counts)[place] - count + local
        run = self.num_samples // self.lanes  # samples in a lane
        in_lane, lane = line % max(1, run), line // max(1, run)
        return epoch * self.num_samples + np.where(line < run * self.lanes, in_lane * self.lanes + lane, line)


class EpochLayout(NamedTuple):
    """The shards of one epoch of a split, permuted to be laid end to end; each array is (num_shards,), by place."""

    shards: Int64s
    firsts: Int64s  # the natural index of the first sample
    counts: Int64s  # samples
    keys: UInt64s  # of the permutation of the samples


def lay_out(orders: Sequence[Order], epochs: Sequence[int]) -> list[EpochLayout]:
    """Lay out an epoch of each of several orders: a permutation takes as long for a few items as for hundreds."""
    sizes = np.array([len(order.counts) for order in orders])
    seed, numbers = orders[0].seed, np.array(epochs, dtype=np.uint64)
    keys = np.repeat(mix64(Purpose.SHARD_ORDER, seed, (numbers, np.zeros_like(numbers))), sizes)
    shards = permute(ranges(np.zeros_like(sizes), sizes), np.repeat(sizes, sizes), keys)
    words = shards.astype(np.uint64) if orders[0].name == "block" else np.full(len(shards), 2**64 - 1, np.uint64)
    keys = mix64(Purpose.SAMPLE_ORDER, seed, (np.repeat(numbers, sizes), words))
    natural = shards + np.repeat(np.cumsum(sizes) - sizes, sizes)
    counts = np.concatenate([order.counts for order in orders])
    firsts = np.concatenate([np.cumsum(order.counts) - order.counts for order in orders])
    ends = np.cumsum(sizes)[:-1]
    columns = (np.split(column, ends) for column in (shards, firsts[natural], counts[natural], keys))
    return [EpochLayout(*each) for each in zip(*columns, strict=True)]


@dataclass
class Orders:
    """The orders of the splits of a stream, by number; their names and seeds are equal.

    The samples of many splits are moved together, as the permutation takes as long for a few as for hundreds.
    """

    orders: Sequence[Order]
    _known: dict[tuple[int, int], EpochLayout] = field(default_factory=dict)  # by split and epoch
    _joined: tuple[list[tuple[int, int]], EpochLayout] | None = None  # the last ones, laid end to end

    def samples(self, splits: Int64s, positions: Int64s) -> Int64s:
        """Map (n,) positions of the streams of (n,) splits to samples, which are numbered one split after the other."""
        sizes: Int64s = np.array([order.num_samples for order in self.orders])
        num_samples, before = sizes[splits], (np.cumsum(sizes) - sizes)[splits]
        lanes = np.array([order.lanes for order in self.orders])[splits]
        epochs, places = np.divmod(positions, num_samples)
        if self.orders[0].name == "sequential" or not len(splits):
            return before + places
        layout, starts = self._lay_end_to_end(splits, epochs)
        run = num_samples // lanes  # samples in a lane
        in_lane, lane = np.divmod(places, lanes)
        line = starts + np.where(places < run * lanes, lane * run + in_lane, places)
        ends = np.cumsum(layout.counts)
        place = np.searchsorted(ends, line, side="right")
        count = layout.counts[place]
        return before + layout.firsts[place] + permute(line - (ends[place] - count), count, layout.keys[place])

    def _lay_end_to_end(self, splits: Int64s, epochs: Int64s) -> tuple[EpochLayout, Int64s]:
        """Lay the epochs of (n,) splits end to end, each once; find where that of each row starts, (n,)."""
        first, last = np.full(len(self.orders), 2**62), np.full(len(self.orders), -1)
        np.minimum.at(first, splits, epochs)
        np.maximum.at(last, splits, epochs)
        ends = np.cumsum(np.maximum(last - first + 1, 0))
        codes = ends[splits] - 1 - (last[splits] - epochs)  # number all epochs of a split from its first to its last
        is_there = np.bincount(codes) > 0
        found = np.flatnonzero(is_there)
        split = np.searchsorted(ends, found, side="right")
        pairs = [*zip(split.tolist(), (last[split] - (ends[split] - 1 - found)).tolist(), strict=True)]
        joined, known = self._joined, self._known  # another thread may replace them
        if not joined or joined[0] != pairs:  # a window often needs the epochs of the last one
            if missing := [pair for pair in pairs if pair not in known]:
                made = lay_out([self.orders[number] for number, _ in missing], [epoch for _, epoch in missing])
                known = known | dict(zip(missing, made, strict=True))
                self._known = known if len(known) <= 2 * len(ends) else {pair: known[pair] for pair in pairs}
            columns = zip(*(known[pair] for pair in pairs), strict=True)
            joined = self._joined = pairs, EpochLayout(*map(np.concatenate, columns))
        sizes = np.array([self.orders[number].num_samples for number, _ in pairs])
        return joined[1], (np.cumsum(sizes) - sizes)[(np.cumsum(is_there) - 1)[codes]]
