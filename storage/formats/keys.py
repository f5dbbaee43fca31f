"""Hashes that decide a document's place: pure integer arithmetic on its content, vectorised.

`mix64` folds 64-bit words into one state with the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast
splittable pseudorandom number generators", OOPSLA 2014, with Stafford's constants, variant 13). The first word is
the purpose in the top byte and the seed below it, so two purposes never start from the same state, whatever the
seed. Every later step is a bijection of the state, so two purposes never give the same value for the same words.

Golden values in tests/storage/test_keys.py pin every result: a change here is a new format version.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from fractions import Fraction
from itertools import pairwise

import numpy as np
import xxhash
from numpy.typing import NDArray

from tokenloom.storage.formats.arrays import AnyBuffer, UInt64s

KEY_SPACE = 2**64  # keys and split values lie in [0, KEY_SPACE)
SEED_SPACE = 2**56  # seeds lie in [0, SEED_SPACE)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
Digests = NDArray[np.bytes_]  # hashes of contents or ids, 16 bytes each, which sort and compare as contents do
DIGEST_DTYPE = np.dtype("S16")


class Purpose(IntEnum):
    """The purpose of a hash; each purpose hashes the same content differently."""

    ORDER = 1
    SPLIT = 2
    SHARD_ORDER = 4  # the order of shards in an epoch: reader/order.py; 3 is not reused
    SAMPLE_ORDER = 5
    COPY = 6  # the order of the further copies of a document
    REPEAT = 7  # whether a document has one copy more


def content_hashes(data: AnyBuffer, offsets: NDArray[np.int64], purpose: bytes = b"") -> UInt64s:
    """Hash each document's bytes with xxh3_128.

    Args:
        data: all documents' bytes, one after the other.
        offsets: (n + 1,) positions; document i is data[offsets[i]:offsets[i + 1]].
        purpose: hashed before each document, so that ids and texts with the same bytes differ.

    Returns:
        (n, 2) uint64: the high and the low half of each hash.
    """
    view = memoryview(data)
    documents = (view[start:end] for start, end in pairwise(offsets.tolist()))
    digests = [xxhash.xxh3_128_digest(purpose + each if purpose else each) for each in documents]
    return words_of(b"".join(digests)).reshape(-1, 2)


def words_of(digest: bytes) -> UInt64s:
    """Return the big-endian 64-bit words of `digest`, (len(digest) / 8,) uint64."""
    return np.frombuffer(digest, dtype=">u8").astype(np.uint64)


def digests_of(content: UInt64s) -> Digests:
    """Return (n, 2) contents as (n,) digests."""
    return np.ascontiguousarray(content, ">u8").view(DIGEST_DTYPE)[:, 0]


def content_digits(content: UInt64s) -> str:
    """Return a content, (2,), as people see it: 32 hexadecimal digits."""
    return content.astype(">u8").tobytes().hex()


def mix64(purpose: Purpose, seed: int, words: Sequence[UInt64s]) -> UInt64s:
    """Fold `words` into one 64-bit hash for `purpose`.

    Args:
        purpose: what the hash is for.
        seed: in [0, 2**56); 0 for purposes without a seed.
        words: arrays of equal shape (n,), folded in this order; (1,) arrays are broadcast.

    Returns:
        (n,) uint64, uniform over [0, 2**64).
    """
    if not 0 <= seed < SEED_SPACE:
        raise ValueError(f"a seed must be in [0, 2**56), not {seed}")
    state = np.zeros(1, dtype=np.uint64)
    for word in (np.full(1, int(purpose) * SEED_SPACE + seed, dtype=np.uint64), *words):
        state = (state ^ word) + _GOLDEN
        state = (state ^ (state >> np.uint64(30))) * _M1  # from here on, SplitMix64's finaliser
        state = (state ^ (state >> np.uint64(27))) * _M2
        state ^= state >> np.uint64(31)
    return state


def order_keys(content: UInt64s, seed: int) -> UInt64s:
    """Return the (n,) order keys of documents whose duplicates are dropped; content is (n, 2)."""
    return mix64(Purpose.ORDER, seed, (content[:, 0], content[:, 1]))


def order_keys_with_duplicates(content: UInt64s, seed: int, fingerprint: str, rows: UInt64s) -> UInt64s:
    """Return the (n,) order keys where duplicates are kept: every copy of a text gets its own place.

    Args:
        content: (n, 2) content hashes.
        seed: in [0, 2**56).
        fingerprint: the input file's fingerprint, see storage/work/fingerprints.py.
        rows: (n,) row numbers in that file.
    """
    source = words_of(xxhash.xxh3_128_digest(fingerprint.encode()))
    return mix64(Purpose.ORDER, seed, (content[:, 0], content[:, 1], source[:1], source[1:], rows))


def copy_keys(keys: UInt64s, number: UInt64s) -> UInt64s:
    """Return the (n,) order keys of further copies: of the documents' own keys, and the copies' numbers from 1 on."""
    return mix64(Purpose.COPY, 0, (keys, number))


def split_bounds(shares: Sequence[tuple[str, float]]) -> list[tuple[int, int, int]]:
    """Divide the range of split values: (split index, start, end), `end` exclusive, by start.

    Splits other than train take their intervals from 0 upwards in the order written; train takes the rest, so a
    document moves neither when data is added nor when the order seed changes.

    Example: [("train", 0.5), ("test", 0.5)] -> [(1, 0, 2**63), (0, 2**63, 2**64)]
    """
    bounds, start, total = [], 0, Fraction(0)
    for i, (name, share) in enumerate(shares):
        if name != "train":
            total += Fraction(repr(share))
            end = min(int(total * KEY_SPACE), KEY_SPACE)
            bounds.append((i, start, end))
            start = end
    train = next(i for i, (name, _) in enumerate(shares) if name == "train")
    return [*bounds, (train, start, KEY_SPACE)]


def split_indices(content: UInt64s, shares: Sequence[tuple[str, float]]) -> NDArray[np.uint8]:
    """Return the index in `shares` of each document's split, (n,) uint8; content is (n, 2)."""
    bounds = [bound for bound in split_bounds(shares) if bound[1] < bound[2]]
    starts = np.array([start for _, start, _ in bounds[1:]], dtype=np.uint64)
    values = mix64(Purpose.SPLIT, 0, (content[:, 0], content[:, 1]))
    interval = np.searchsorted(starts, values, side="right")
    return np.array([i for i, _, _ in bounds], dtype=np.uint8)[interval]


def equal_part(index: int, count: int, start: int = 0, end: int = KEY_SPACE) -> tuple[int, int]:
    """Return part `index` of `count` equal parts of the keys [start, end), as [part start, part end)."""
    width = end - start
    return start + index * width // count, start + (index + 1) * width // count
