"""Mixture: several datasets by weight; a table of one period tells whose turn each position of the stream is.

Each member's n-th turn gets a window of positions from its weight alone, and of the turns that may come the one with
the earliest end of window comes: so at every prefix each member is within one sample of its weight (Steiner and
Yeomans, "Level schedules for mixed-model, just-in-time processes", Management Science 39, 1993).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import gcd, lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.reader.arguments import whole
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.order.epochs import Int64s

MAX_PERIOD = 100_000


def whole_weights(weights: Sequence[float]) -> list[int]:
    """Return weights as whole numbers in lowest terms: exact if their sum is at most 100,000, else rounded to that.

    Example: [0.7, 0.3] -> [7, 3]

    Raises ValueError if one is negative or no number, or all are 0.
    """
    if any(not 0 <= weight < float("inf") for weight in weights) or not any(weights):
        raise ValueError(f"weights are numbers from 0, not all of them 0: {list(weights)}")
    exact = [Fraction(repr(float(weight))) for weight in weights]
    shares = [weight / sum(exact) for weight in exact]
    period = lcm(*(share.denominator for share in shares))
    if period <= MAX_PERIOD:
        return [int(share * period) for share in shares]
    rounded = [max(1, int(share * MAX_PERIOD)) if share else 0 for share in shares]
    rounded[int(np.argmax(rounded))] -= max(0, sum(rounded) - MAX_PERIOD)
    lacking = sorted(range(len(shares)), key=lambda member: rounded[member] - shares[member] * MAX_PERIOD)
    for member in lacking[: max(0, MAX_PERIOD - sum(rounded))]:  # largest remainders first
        rounded[member] += 1
    return [weight // gcd(*rounded) for weight in rounded]


def turn_table(weights: Sequence[int]) -> NDArray[np.int32]:
    """Return whose turn each position of a period is, (sum(weights),) int32.

    Example: [2, 1] -> [0, 0, 1]
    """
    period = sum(weights)
    coming = [(0, member) for member, weight in enumerate(weights) if weight]  # (first position allowed, member)
    heapq.heapify(coming)
    ready: list[tuple[int, int]] = []  # (position by which the turn must have come, member)
    taken = [0] * len(weights)
    table = np.empty(period, dtype=np.int32)
    for position in range(period):
        while coming and coming[0][0] <= position:
            _, member = heapq.heappop(coming)
            heapq.heappush(ready, (-(-period * (taken[member] + 1) // weights[member]), member))
        _, member = heapq.heappop(ready)
        table[position] = member
        taken[member] += 1
        heapq.heappush(coming, (period * taken[member] // weights[member], member))
    return table


class _Stage:
    """Turns from a position on, by one set of weights."""

    def __init__(self, start: int, weights: list[int], before: Int64s) -> None:
        self.start, self.weights, self.before = start, weights, before  # before: (members,) turns before `start`
        self.table = turn_table(weights)
        self._ordinals = np.empty(len(self.table), dtype=np.int64)  # which turn of its member a position is
        for member in range(len(weights)):
            places = np.flatnonzero(self.table == member)
            self._ordinals[places] = np.arange(len(places))

    def turns(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        periods, places = np.divmod(positions - self.start, len(self.table))
        members = self.table[places].astype(np.int64)
        return members, self.before[members] + periods * np.array(self.weights)[members] + self._ordinals[places]

    def counts_before(self, position: int) -> Int64s:
        periods, place = divmod(position - self.start, len(self.table))
        counts: Int64s = self.before + periods * np.array(self.weights)
        return counts + np.bincount(self.table[:place], minlength=len(self.weights))


class Schedule:
    """Whose turn each position of a mixture is, and which of its samples.

    Args:
        stages: (from_sample, weights), the first from 0, ascending.
    """

    def __init__(self, stages: Sequence[tuple[int, Sequence[float]]]) -> None:
        starts = [start for start, _ in stages]
        if not stages or starts[0] != 0 or starts != sorted(set(starts)):
            raise ValueError(f"stages of weights start at 0 and ascend, not at {starts}")
        self._starts = np.array(starts, dtype=np.int64)
        self.stages: list[_Stage] = []
        before = np.zeros(len(stages[0][1]), dtype=np.int64)
        for start, weights in stages:
            before = self.stages[-1].counts_before(start) if self.stages else before
            self.stages.append(_Stage(start, whole_weights(weights), before))

    def turns(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        """Return (n,) members and (n,) ordinals: which sample of the member's stream each position takes."""
        stage_of = np.searchsorted(self._starts, positions, side="right") - 1
        members, ordinals = np.empty_like(positions), np.empty_like(positions)
        for index in np.unique(stage_of).tolist():
            there = stage_of == index
            members[there], ordinals[there] = self.stages[index].turns(positions[there])
        return members, ordinals

    def counts_before(self, position: int) -> list[int]:
        """Return how many samples of each member lie before `position`."""
        stage = self.stages[int(np.searchsorted(self._starts, position, side="right")) - 1]
        counts: list[int] = stage.counts_before(position).tolist()
        return counts

    def to_json(self) -> list[list[Any]]:
        """Return [[from_sample, weights], ...] with whole weights."""
        return [[stage.start, stage.weights] for stage in self.stages]


class Mixture:
    """Several datasets by weight; a weight counts samples.

    Args:
        members: {name: (dataset, weight)}; all of one tokenizer, seq_len, packing, labels and fields. Weights are
            numbers from 0; their ratios hold exactly if they make a period of at most 100,000 samples, else to a
            100,000th.
        stages: later weights as [(from_sample, {name: weight}), ...], counted in samples of the whole stream.

    Raises ValueError if members differ, weights are out of range, or a stage names other members.
    """

    def __init__(
        self,
        members: Mapping[str, tuple[TokenDataset, float]],
        stages: Sequence[tuple[int, Mapping[str, float]]] = (),
    ) -> None:
        if not members:
            raise ValueError("a mixture has at least one member")
        for name, member in members.items():
            if not (isinstance(name, str) and isinstance(member, tuple) and isinstance(member[0], TokenDataset)):
                raise TypeError(f"a member of a mixture is name: (TokenDataset, weight), not {name!r}: {member!r}")
        self.datasets = {name: dataset for name, (dataset, _) in members.items()}
        _check_alike(self.datasets)
        for start, weights in stages:
            if set(weights) != set(members):
                raise ValueError(f"the stage from sample {start} names {sorted(weights)}, not {sorted(members)}")
        later = [(whole("from_sample", at), [weights[name] for name in members]) for at, weights in stages]
        self.schedule = Schedule([(0, [weight for _, weight in members.values()]), *later])

    def __repr__(self) -> str:
        names = ", ".join(
            f"{name}: {w}" for name, w in zip(self.datasets, self.schedule.stages[0].weights, strict=True)
        )
        return f"Mixture({names})"


def _check_alike(datasets: Mapping[str, TokenDataset]) -> None:
    first_name, first = next(iter(datasets.items()))
    for name, data in datasets.items():
        for what, mine, other in (
            ("tokenizer", first.manifest["tokenizer"]["fingerprint"], data.manifest["tokenizer"]["fingerprint"]),
            ("seq_len", first.seq_len, data.seq_len),
            ("packing", first.packing, data.packing),
            ("labels", first.format.labels, data.format.labels),
            ("fields", first.format.fields, data.format.fields),
            ("mask_documents", first.format.mask_documents, data.format.mask_documents),
        ):
            if mine != other:
                raise ValueError(f"members of a mixture share one {what}: {first_name!r} has {mine}, {name!r} {other}")
