"""The order of samples: pure functions of (sample counts, seed, order, lanes, epoch, position).

docs/concepts/order.md defines it. A position of the endless stream is `epoch * num_samples + position in the epoch`.
The memory that the order of an epoch takes grows with the number of shards, not of samples: a keyed permutation moves
the samples.

Golden values in tests/reader/test_order.py pin it: a change here is a new ORDER_VERSION.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from tokenloom.reader.arguments import checked_choice, checked_int
from tokenloom.reader.order.permutation import permute, unpermute
from tokenloom.storage.formats.arrays import Int64s, UInt64s
from tokenloom.storage.formats.keys import Purpose, mix64

ORDER_VERSION = 1
ORDERS = ("block", "full", "sequential")
DEFAULT_LANES = 64
MAX_SAMPLES = 2**48


def epoch_keys(purpose: Purpose, seed: int, epoch: int, words: UInt64s) -> UInt64s:
    """Return the keys of an epoch, (n,), one for each of (n,) words."""
    return mix64(purpose, seed, (np.array([epoch], dtype=np.uint64), words))


class EpochLayout:
    """The shards of one epoch, permuted and laid end to end.

    Args:
        counts: (num_shards,) samples in each shard.
        seed: in [0, 2**56).
        epoch: from 0.
    """

    def __init__(self, counts: Int64s, seed: int, epoch: int) -> None:
        num_shards = len(counts)
        zero = np.zeros(1, dtype=np.uint64)
        key = epoch_keys(Purpose.SHARD_ORDER, seed, epoch, zero)[0]
        #: (num_shards,) the shard at each place
        self.shards = permute(np.arange(num_shards, dtype=np.int64), max(1, num_shards), key)
        #: (num_shards,) the number of samples at each place and before
        self.ends = np.cumsum(counts[self.shards], dtype=np.int64)
        self.keys = epoch_keys(Purpose.SAMPLE_ORDER, seed, epoch, np.arange(num_shards, dtype=np.uint64))


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
            return permute(places, self.num_samples, self._full_key(epoch))
        return self._block(self._layout(epoch), places)

    def _full_key(self, epoch: int) -> UInt64s:
        return epoch_keys(Purpose.SAMPLE_ORDER, self.seed, epoch, np.full(1, 2**64 - 1, dtype=np.uint64))  # (1,)

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
        """Return the positions of the stream at which (n,) samples are in an epoch: the inverse of `samples`."""
        return epoch * self.num_samples + self._epoch_places(epoch, samples)

    def _epoch_places(self, epoch: int, samples: Int64s) -> Int64s:
        if self.name == "sequential":
            return samples
        if self.name == "full":
            return unpermute(samples, self.num_samples, self._full_key(epoch))
        return self._unblock(self._layout(epoch), samples)

    def _unblock(self, layout: EpochLayout, samples: Int64s) -> Int64s:
        shard = np.searchsorted(self._firsts + self._counts, samples, side="right")
        count = self._counts[shard]
        local = unpermute(samples - self._firsts[shard], count, layout.keys[shard])
        line = layout.ends[np.argsort(layout.shards)[shard]] - count + local
        run = self.num_samples // self.lanes  # samples in a lane
        in_lane, lane = line % max(1, run), line // max(1, run)
        return np.where(line < run * self.lanes, in_lane * self.lanes + lane, line)
