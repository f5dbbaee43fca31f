"""The order of samples: pure functions of (sample counts, seed, order, lanes, epoch, position), with their inverses.

docs/concepts/order.md defines it. A position of the endless stream is `epoch * num_samples + position in the epoch`.
The memory that the order of an epoch takes grows with the number of shards, not of samples: a keyed permutation moves
the samples. It is a Feistel network over Z_a x Z_b, with a * b at least n and little more. A result outside [0, n) goes
through the network again until it is inside (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002).

The schedule of a mixture is a table of one period, which says whose turn each position of the stream is. The weight of
a member gives each of its turns an interval of positions. Of the turns whose interval has begun, the one whose interval
ends first takes the position. So in every prefix each member is within one sample of its weight (Steiner and Yeomans,
"Level schedules for mixed-model, just-in-time processes", Management Science 39, 1993).

Golden values in tests/reader/test_order.py pin all of it: a change here is a new ORDER_VERSION.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from math import gcd, lcm

import numpy as np

from tokenloom.reader.arguments import checked_choice, checked_int
from tokenloom.storage.formats.arrays import Int32s, Int64s, UInt64s
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
MAX_PERIOD = 100_000


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
        epochs, places = np.divmod(positions, self.num_samples)
        if self.name == "sequential":
            return places
        samples = np.empty_like(places)
        for epoch in np.unique(epochs).tolist():
            of_epoch = epochs == epoch
            if self.name == "full":
                samples[of_epoch] = permute(places[of_epoch], self.num_samples, self._full_key(epoch))
            else:
                samples[of_epoch] = self._block(self._layout(epoch), places[of_epoch])
        return samples

    def _full_key(self, epoch: int) -> UInt64s:
        words = np.full(1, epoch, dtype=np.uint64), np.full(1, 2**64 - 1, dtype=np.uint64)
        return mix64(Purpose.SAMPLE_ORDER, self.seed, words)  # (1,)

    def _block(self, layout: EpochLayout, places: Int64s) -> Int64s:
        run = self.num_samples // self.lanes  # samples in a lane
        in_lanes = places < run * self.lanes
        line = np.where(in_lanes, places % self.lanes * run + places // self.lanes, places)
        place = np.searchsorted(layout.ends, line, side="right")
        shard = layout.shards[place]
        count = self._counts[shard]
        local = line - (layout.ends[place] - count)
        return self._firsts[shard] + permute(local, count, layout.keys[shard])

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


def whole_weights(weights: Sequence[float]) -> list[int]:
    """Scale weights to integers in lowest terms: exact if they add up to at most 100,000, else rounded to that sum.

    Example: [0.7, 0.3] -> [7, 3]

    Raises ValueError if a weight is negative or not finite, or if all are 0.
    """
    if any(not 0 <= weight < float("inf") for weight in weights) or not any(weights):
        raise ValueError(f"weights must be finite, at least 0, and not all 0: {list(weights)}")
    exact = [Fraction(repr(float(weight))) for weight in weights]
    shares = [weight / sum(exact) for weight in exact]
    period = lcm(*(share.denominator for share in shares))
    if period <= MAX_PERIOD:
        return [int(share * period) for share in shares]
    rounded = [max(1, int(share * MAX_PERIOD)) if share else 0 for share in shares]
    rounded[int(np.argmax(rounded))] -= max(0, sum(rounded) - MAX_PERIOD)
    lacking = sorted(range(len(shares)), key=lambda member: rounded[member] - shares[member] * MAX_PERIOD)
    for member in lacking[: max(0, MAX_PERIOD - sum(rounded))]:  # the largest remainders come first
        rounded[member] += 1
    return [weight // gcd(*rounded) for weight in rounded]


def turn_table(weights: Sequence[int]) -> Int32s:
    """Give each position of a period to a member: their indices, (sum(weights),) int32.

    Example: [2, 1] -> [0, 0, 1]
    """
    period = sum(weights)
    # (start of the next turn's interval, member)
    pending = [(0, member) for member, weight in enumerate(weights) if weight]
    heapq.heapify(pending)
    ready: list[tuple[int, int]] = []  # (end of the turn's interval, member)
    taken = [0] * len(weights)
    table = np.empty(period, dtype=np.int32)
    for position in range(period):
        while pending and pending[0][0] <= position:
            _, member = heapq.heappop(pending)
            heapq.heappush(ready, (-(-period * (taken[member] + 1) // weights[member]), member))
        _, member = heapq.heappop(ready)
        table[position] = member
        taken[member] += 1
        heapq.heappush(pending, (period * taken[member] // weights[member], member))
    return table


class _Stage:
    """The turns from a position on, by one set of weights."""

    def __init__(self, start: int, weights: list[int], before: Int64s) -> None:
        self.start, self.weights, self.before = start, weights, before  # before: (members,) turns before `start`
        self.table = turn_table(weights)
        self._ordinals = np.empty(len(self.table), dtype=np.int64)  # how many turns the member had before
        for member in range(len(weights)):
            places = np.flatnonzero(self.table == member)
            self._ordinals[places] = np.arange(len(places))

    def turns(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        periods, places = np.divmod(positions - self.start, len(self.table))
        members = self.table[places].astype(np.int64)
        return members, self.before[members] + periods * np.array(self.weights)[members] + self._ordinals[places]

    def positions(self, member: int, ordinals: Int64s) -> Int64s:
        periods, turns = np.divmod(ordinals - self.before[member], self.weights[member])
        found: Int64s = self.start + periods * len(self.table) + np.flatnonzero(self.table == member)[turns]
        return found

    def counts_before(self, position: int) -> Int64s:
        periods, place = divmod(position - self.start, len(self.table))
        counts: Int64s = self.before + periods * np.array(self.weights)
        return counts + np.bincount(self.table[:place], minlength=len(self.weights))


class Schedule:
    """Whose turn each position of a mixture is, and which of the member's samples it takes.

    Args:
        stages: (from_sample, weights) in ascending order, the first from 0.
    """

    def __init__(self, stages: Sequence[tuple[int, Sequence[float]]]) -> None:
        starts = [start for start, _ in stages]
        if not stages or starts[0] != 0 or starts != sorted(set(starts)):
            raise ValueError(f"the stages of weights must start at 0 and ascend, not {starts}")
        self._starts = np.array(starts, dtype=np.int64)
        self.stages: list[_Stage] = []
        before = np.zeros(len(stages[0][1]), dtype=np.int64)
        for start, weights in stages:
            before = self.stages[-1].counts_before(start) if self.stages else before
            self.stages.append(_Stage(start, whole_weights(weights), before))

    def turns(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        """Find the member of each of (n,) positions, (n,), and the position in its own stream, (n,)."""
        stage_of = np.searchsorted(self._starts, positions, side="right") - 1
        members, ordinals = np.empty_like(positions), np.empty_like(positions)
        for index in np.unique(stage_of).tolist():
            there = stage_of == index
            members[there], ordinals[there] = self.stages[index].turns(positions[there])
        return members, ordinals

    def positions(self, member: int, ordinals: Int64s) -> Int64s:
        """Find the positions at which a member takes (n,) positions of its own stream: the inverse of `turns`.

        A position is -1 if the member never gets so far, because its last weight is 0.
        """
        firsts = np.array([stage.before[member] for stage in self.stages])  # does not decrease
        stage_of = np.searchsorted(firsts, ordinals, side="right") - 1
        found = np.full_like(ordinals, -1)
        for index in np.unique(stage_of).tolist():
            if self.stages[index].weights[member]:
                there = stage_of == index
                found[there] = self.stages[index].positions(member, ordinals[there])
        return found
