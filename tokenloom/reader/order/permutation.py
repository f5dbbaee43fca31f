"""A keyed permutation of [0, n) without a table.

It is a Feistel network over Z_a x Z_b, with a * b at least n and little more. A result outside [0, n) goes through the
network again until it is inside (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002).

Golden values in tests/reader/test_order.py pin it: a change here is a new ORDER_VERSION.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tokenloom.storage.formats.arrays import Int64s, UInt64s

_ROUNDS = 16  # with 8, permutations of 5 are uneven (chi-square 5.0 per degree of freedom); with 16 it is 1.07
_32 = np.uint64(32)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_LAST = np.uint64(_ROUNDS * int(_GOLDEN) % 2**64)  # added to the key of the last round
_Network = Callable[[UInt64s, UInt64s, UInt64s, UInt64s], UInt64s]


def permute(positions: Int64s, counts: Int64s | int, keys: UInt64s | np.uint64 | int) -> Int64s:
    """Return where a keyed permutation of [0, count) moves each position.

    Args:
        positions: (n,), each in [0, its count).
        counts: one count or (n,) of them, in [1, 2**48].
        keys: one 64-bit key or (n,) of them; each (count, key) is another permutation.

    Returns:
        (n,) int64; with one count and key, different positions move to different places.
    """
    return _walk(_feistel, positions, counts, keys)


def unpermute(places: Int64s, counts: Int64s | int, keys: UInt64s | np.uint64 | int) -> Int64s:
    """Return which position `permute` moves to each place; see permute for arguments."""
    return _walk(_unfeistel, places, counts, keys)


def _walk(network: _Network, values: Int64s, counts: Int64s | int, keys: UInt64s | np.uint64 | int) -> Int64s:
    """Apply a network to each value until the result is below its count."""
    count, key = (np.broadcast_to(np.asarray(x, dtype=np.uint64), values.shape) for x in (counts, keys))
    width = np.ceil(np.sqrt(count)).astype(np.uint64)  # exact below 2**52
    height = (count + width - np.uint64(1)) // np.maximum(width, np.uint64(1))
    moved = network(values.astype(np.uint64), width, height, key)
    outside = np.flatnonzero(moved >= count)
    while len(outside):
        moved[outside] = network(moved[outside], width[outside], height[outside], key[outside])
        outside = outside[moved[outside] >= count[outside]]
    return moved.astype(np.int64)


def _feistel(value: UInt64s, width: UInt64s, height: UInt64s, key: UInt64s) -> UInt64s:
    """Apply a bijection of [0, width * height), whose rounds each move one coordinate by a hash of the other."""
    left, right = np.divmod(value, height)
    for _ in range(_ROUNDS // 2):
        key = key + _GOLDEN
        _shift(left, width, right, key)
        key = key + _GOLDEN
        _shift(right, height, left, key)
    return left * height + right


def _unfeistel(value: UInt64s, width: UInt64s, height: UInt64s, key: UInt64s) -> UInt64s:
    """Apply the inverse of _feistel: its rounds in reverse."""
    left, right = np.divmod(value, height)
    key = key + _LAST
    for _ in range(_ROUNDS // 2):
        _shift_back(right, height, left, key)
        key = key - _GOLDEN
        _shift_back(left, width, right, key)
        key = key - _GOLDEN
    return left * height + right


def _shift(value: UInt64s, limit: UInt64s, other: UInt64s, key: UInt64s) -> None:
    """Move `value` within [0, limit), limit at most 2**24 + 1, by a hash of `other`, in place."""
    value += _distance(limit, other, key)
    np.minimum(value, value - limit, out=value)  # a value below the limit wraps around and stays


def _shift_back(value: UInt64s, limit: UInt64s, other: UInt64s, key: UInt64s) -> None:
    """Undo _shift, in place."""
    value -= _distance(limit, other, key)
    np.minimum(value, value + limit, out=value)  # a value below 0 has wrapped around, and wraps back


def _distance(limit: UInt64s, other: UInt64s, key: UInt64s) -> UInt64s:
    """Return how far to move values within [0, limit)."""
    state = (other + key) * _M1
    state ^= state >> _32
    state *= _M2
    state >>= _32
    state *= limit
    state >>= _32
    return state
