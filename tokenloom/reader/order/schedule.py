"""The schedule of a mixture: a table of one period says whose turn each position of the stream is.

The weight of a member gives each of its turns an interval of positions. Of the turns whose interval has begun, the one
whose interval ends first takes the position. So in every prefix each member is within one sample of its weight (Steiner
and Yeomans, "Level schedules for mixed-model, just-in-time processes", Management Science 39, 1993).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from fractions import Fraction
from math import gcd, lcm

import numpy as np

from tokenloom.storage.formats.arrays import Int32s, Int64s

MAX_PERIOD = 100_000


def whole_weights(weights: Sequence[float]) -> list[int]:
    """Return weights as integers in lowest terms: exact if they add up to at most 100,000, else rounded to that sum.

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
    """Return whose turn each position of a period is: the index of a member, (sum(weights),) int32.

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
        """Return the member of each of (n,) positions, (n,), and the position in its own stream, (n,)."""
        stage_of = np.searchsorted(self._starts, positions, side="right") - 1
        members, ordinals = np.empty_like(positions), np.empty_like(positions)
        for index in np.unique(stage_of).tolist():
            there = stage_of == index
            members[there], ordinals[there] = self.stages[index].turns(positions[there])
        return members, ordinals

    def positions(self, member: int, ordinals: Int64s) -> Int64s:
        """Return the positions at which a member takes (n,) positions of its own stream: the inverse of `turns`.

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
