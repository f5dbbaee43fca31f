"""The schedule of a mixture: whose turn each position of the stream is, and which of the member's samples it takes.

Weights are integers that add up to 2**42, the leaves of a Huffman tree ("A method for the construction of
minimum-redundancy codes", 1952). Each node divides its positions between two children: of the first n positions of a
node of weight b, floor((n * a + b // 2) / b) go to its left child, of weight a, and the others to its right child. So
in every prefix each member is within two samples of its share: a node is off by half a sample at most, and a member by
its part of that. Positions are found in whole numbers down the tree, and back up again.

Golden values in tests/reader/test_mixture.py pin all of it: a change here is a new SCHEDULE_VERSION.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Sequence
from itertools import pairwise

import numpy as np

from tokenloom.storage.formats.arrays import Int64s, UInt64s

SCHEDULE_VERSION = 2
TOTAL_WEIGHT = 2**42
MAX_POSITIONS = 2**41  # of a stage: so far, rounding a weight changes its share by less than half a sample
MAX_STREAM = 2.0**62  # positions; a state has the same limit
_BLOCK = 2**20  # positions whose turns are found together, at most
_HALF_BITS = np.uint64(21)
_LOW = np.uint64(2**21 - 1)


def whole_weights(weights: Sequence[float]) -> list[int]:
    """Scale weights to integers that add up to 2**42; the largest remainders are rounded up, ties by index.

    Example: [1, 3] -> [2**40, 3 * 2**40]

    Args:
        weights: finite, at least 0, and not all 0.
    """
    ratios = [weight.as_integer_ratio() for weight in weights]
    scale = math.lcm(*(denominator for _, denominator in ratios))
    exact = [numerator * (scale // denominator) for numerator, denominator in ratios]
    total = sum(exact)
    divided = [divmod(weight * TOTAL_WEIGHT, total) for weight in exact]
    whole = [quotient for quotient, _ in divided]
    by_remainder = sorted(range(len(whole)), key=lambda member: -divided[member][1])
    for member in by_remainder[: TOTAL_WEIGHT - sum(whole)]:
        whole[member] += 1
    return whole


class Tree:
    """The tree of two-way splits over the weights of members, which are its first nodes.

    Args:
        weights: integers from 0 of sum 2**42, by member.
    """

    def __init__(self, weights: Sequence[int]) -> None:
        self._num_members = len(weights)
        nodes = [*weights]
        self._parents = dict[int, int]()
        self._children = [(member, member) for member in range(len(weights))]  # who has the turn keeps it
        heap = [(weight, member) for member, weight in enumerate(weights) if weight]
        heapq.heapify(heap)
        while len(heap) > 1:  # merges the two lightest; ties go to the lower numbers
            (a, left), (b, right) = heapq.heappop(heap), heapq.heappop(heap)
            heapq.heappush(heap, (a + b, len(nodes)))
            self._parents[left] = self._parents[right] = len(nodes)
            nodes.append(a + b)
            self._children.append((left, right))
        self._root, self._nodes = heap[0][1], nodes
        self._weights, children = np.maximum(nodes, 1), np.array(self._children)
        self._left_weights = self._weights[children[:, 0]]
        self._next = children[:, ::-1].ravel()  # the right and the left child of each node
        self._known = 0, *self._divide(0)  # where the last block of positions begins, and what _divide finds there

    def turns(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        """Find the member of each of (n,) positions, (n,), and the number of its turns before, (n,).

        The positions are less than 2**20 apart, and counted from a multiple of it: products with weights have 63 bits.
        """
        start, known = int(positions.min()) // _BLOCK * _BLOCK, self._known  # another thread may replace it
        if known[0] != start:
            known = self._known = start, *self._divide(start)
        members, places = self._descend(np.full(len(positions), self._root), positions - start, known[2])
        return members, known[1][members] + places

    def _descend(self, nodes: Int64s, places: Int64s, rests: Int64s) -> tuple[Int64s, Int64s]:
        """Find the member below each of (n,) nodes that has the turn at (n,) places of the node, and its own place."""
        while (num_left := np.count_nonzero(nodes >= self._num_members)) > len(nodes) // 8:
            a, b = self._left_weights.take(nodes), self._weights.take(nodes)
            left_before, rest = np.divmod(places * a + rests.take(nodes), b)
            goes_left = rest + a >= b  # the next place has one more
            places = np.where(goes_left, left_before, places - left_before)
            nodes = self._next.take(2 * nodes + goes_left)
        if num_left:  # the others stay where they are
            left = np.flatnonzero(nodes >= self._num_members)
            nodes[left], places[left] = self._descend(nodes[left], places[left], rests)
        return nodes, places

    def positions(self, member: int, ordinals: Int64s) -> Int64s:
        """Find the positions of (n,) turns of a member with a weight: the inverse of `turns`."""
        node, places = member, ordinals.astype(np.uint64)
        while node != self._root:
            parent = self._parents[node]
            weight, half = self._nodes[parent], self._nodes[parent] // 2
            is_left = node == self._children[parent][0]
            # The last place of the parent before which the child has no more than these.
            places = _scale(places, weight, self._nodes[node], weight - half - 1 if is_left else half)
            node = parent
        return places.astype(np.int64)

    def counts_before(self, position: int) -> Int64s:
        """Count the turns of each member before a position, (members,)."""
        return self._divide(position)[0][: self._num_members]

    def _divide(self, position: int) -> tuple[Int64s, Int64s]:
        """Count the turns of each node before a position; and the remainder of n * a + b // 2 divided by b."""
        counts, rests = [0] * len(self._nodes), [0] * len(self._nodes)
        counts[self._root] = position
        for node in range(self._root, self._num_members - 1, -1):
            left, right = self._children[node]
            a, b = self._nodes[left], self._nodes[node]
            counts[left], rests[node] = divmod(counts[node] * a + b // 2, b)
            counts[right] = counts[node] - counts[left]
        return np.array(counts, np.int64), np.array(rests, np.int64)


def _scale(numbers: UInt64s, a: int, b: int, add: int) -> UInt64s:
    """Compute floor((numbers * a + add) / b) for a, b, add <= 2**42, though numbers * a may take over 64 bits."""
    factor, divisor = np.uint64(a), np.uint64(b)
    whole, rest = np.divmod(numbers, divisor)
    high, carry = np.divmod((rest >> _HALF_BITS) * factor, divisor)
    low, last = np.divmod((carry << _HALF_BITS) + (rest & _LOW) * factor, divisor)
    scaled: UInt64s = whole * factor + (high << _HALF_BITS) + low + (last + np.uint64(add)) // divisor
    return scaled


class Stage:
    """The turns from a position on, by one set of weights; members have had `before` (members,) turns until then."""

    def __init__(self, start: int, weights: list[int], before: Int64s) -> None:
        self.start, self.weights, self.before, self.tree = start, weights, before, Tree(weights)
        self.shares = [weight / TOTAL_WEIGHT for weight in weights]


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
        self.stages = [Stage(0, whole_weights(stages[0][1]), np.zeros(len(stages[0][1]), dtype=np.int64))]
        for start, weights in stages[1:]:
            self.stages.append(Stage(start, whole_weights(weights), self.counts_before(start)))

    def describe(self, names: Collection[str | None]) -> list[str]:
        """Describe the shares of members, as lines of text."""
        texts = []
        for stage in self.stages:
            shares = ", ".join(f"{name} {share:.4g}" for name, share in zip(names, stage.shares, strict=True))
            texts.append(f"mixture   from sample {stage.start:,}: {shares}")
        return texts

    def first_shares(self) -> list[float]:
        """Find the share of each member in the first stage that has one, when it joins; 0 if none has."""
        by_member = zip(*(stage.shares for stage in self.stages), strict=True)
        return [next(filter(None, shares), 0.0) for shares in by_member]

    def turns(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        """Find the member of each of (n,) positions, (n,), and the position in its own stream, (n,)."""
        members, ordinals = np.empty_like(positions), np.empty_like(positions)
        stage_of = np.searchsorted(self._starts, positions, side="right") - 1
        runs = np.flatnonzero(np.diff(positions // _BLOCK * len(self.stages) + stage_of, prepend=-1)).tolist()
        for first, end in pairwise([*runs, len(positions)]):  # of one block and stage; one run, as a rule
            stage, part = self.stages[stage_of[first]], slice(first, end)
            members[part], own = stage.tree.turns(positions[part] - stage.start)
            ordinals[part] = own + stage.before[members[part]]
        return members, ordinals

    def counts_before(self, position: int) -> Int64s:
        """Count the turns of each member before a position, (members,)."""
        stage = [stage for stage in self.stages if stage.start <= position][-1]
        return stage.before + stage.tree.counts_before(position - stage.start)

    def positions(self, member: int, ordinals: Int64s) -> Int64s:
        """Find the positions at which a member takes (n,) positions of its own stream: the inverse of `turns`.

        A position is -1 if the member never gets so far, because its last weight is 0 or a stream ends at 2**62.
        """
        firsts = np.array([stage.before[member] for stage in self.stages])  # does not decrease
        stage_of = np.searchsorted(firsts, ordinals, side="right") - 1
        found = np.full_like(ordinals, -1)
        for index in sorted({*stage_of.tolist()}):
            stage = self.stages[index]
            own = ordinals - stage.before[member]
            there = (stage_of == index) & (own < MAX_STREAM * stage.shares[member])  # false without a weight
            if there.any():
                found[there] = stage.start + stage.tree.positions(member, own[there])
        return found
