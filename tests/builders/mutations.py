"""Damage to bytes, by a seed: what a bad disk, a cut-off copy and a wrong writer do."""

from __future__ import annotations

import random
from collections.abc import Callable

_ODD_BYTES = bytes([0, 1, 2, 0x0F, 0x10, 0x20, 0x7F, 0x80, 0x81, 0xFE, 0xFF]) + b'"{}[]:,\n\\\r-e'


def _flip_bits(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8])):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _overwrite(data: bytes, rng: random.Random) -> bytes:
    start, count = rng.randrange(len(data)), rng.choice([1, 4, 16, 64, 512])
    fill = rng.choice([bytes(count), b"\xff" * count, rng.randbytes(count)])
    return (data[:start] + fill + data[start + count :])[: len(data)]


def _insert(data: bytes, rng: random.Random) -> bytes:
    at, count = rng.randrange(len(data) + 1), rng.choice([1, 2, 8, 100])
    return data[:at] + rng.choice([rng.randbytes(count), bytes([rng.choice(_ODD_BYTES)]) * count]) + data[at:]


def _truncate(data: bytes, rng: random.Random) -> bytes:
    count = rng.choice([1, 4, 8, 1 + rng.randrange(len(data))])
    return data[count:] if rng.random() < 0.3 else data[:-count]


def _rearrange(data: bytes, rng: random.Random) -> bytes:
    """Remove a range, write it twice, or exchange it with its neighbour."""
    start, middle, end = sorted(rng.randrange(len(data) + 1) for _ in range(3))
    first, second = data[start:middle], data[middle:end]
    return data[:start] + rng.choice([b"", second, 2 * (first + second), second + first]) + data[end:]


def _change_ends(data: bytes, rng: random.Random) -> bytes:
    """Change the first or the last bytes: magic numbers, the length of a footer."""
    changed = bytearray(data)
    at = rng.randrange(min(8, len(data)))
    changed[at if rng.random() < 0.5 else -1 - at] = rng.choice(_ODD_BYTES)
    return bytes(changed)


_DAMAGES: list[Callable[[bytes, random.Random], bytes]]
_DAMAGES = [_flip_bits, _overwrite, _insert, _truncate, _rearrange, _change_ends]


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Return `data`, at least one byte, with one damage."""
    return rng.choice(_DAMAGES)(data, rng)
