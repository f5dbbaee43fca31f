"""Damage to files, by a seed: what a bad disk, a cut-off copy, a wrong writer and an attacker do to bytes."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Callable, Sequence

import pyarrow.parquet as pq

ODD_BYTES = bytes([0, 1, 2, 0x0F, 0x10, 0x20, 0x7F, 0x80, 0x81, 0xFE, 0xFF])
ODD_NUMBERS = [0, 1, -1, 7, 8, 255, 2**16, 2**24, 2**30, 2**31 - 1, -(2**31)]
MARKS = b'"{}[]:,\n\\\r0-e '
_TRIES = 20


def flip_bits(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Flip one to eight bits."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 8])):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def overwrite(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Write zeros, ones or noise over a run of bytes."""
    start, count = rng.randrange(len(data)), min(len(data), rng.choice([1, 4, 16, 64, 512, 4096]))
    fill = rng.choice([bytes(count), b"\xff" * count, rng.randbytes(count)])
    return (data[:start] + fill + data[start + count :])[: len(data)]


def insert(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Insert noise, zeros or a marker of the format."""
    at, count = rng.randrange(len(data) + 1), rng.choice([1, 1, 2, 8, 100])
    piece = rng.choice([rng.randbytes(count), bytes(count), bytes([rng.choice(MARKS)]) * count])
    return data[:at] + piece + data[at:]


def truncate(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Cut off the beginning, or the end, often only a few bytes."""
    count = rng.choice([1, 3, 4, 8, rng.randrange(len(data)), 1 + rng.randrange(min(64, len(data)))])
    return data[count:] if rng.random() < 0.3 else data[:-count]


def rearrange(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Remove a range, write it twice, or exchange it with its neighbour."""
    start, end = _range(data, rng)
    middle = rng.randrange(start, end + 1)
    first, second = data[start:middle], data[middle:end]
    return data[:start] + rng.choice([b"", second, 2 * (first + second), second + first]) + data[end:]


def splice(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Join the head of one file and the tail of another."""
    other = rng.choice(others)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other)) :]


def change_ends(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Change the first or the last bytes: magic numbers, the length of a footer."""
    changed = bytearray(data)
    at = rng.randrange(min(8, len(data)))
    changed[at if rng.random() < 0.5 else -1 - at] = rng.choice(ODD_BYTES)
    return bytes(changed)


def change_marks(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Change what gives a text file its structure: a quote, bracket, comma or line end into another."""
    changed = bytearray(data)
    for _ in range(_TRIES):
        at = rng.randrange(len(changed))
        if changed[at] in MARKS:
            changed[at] = rng.choice(MARKS)
            break
    return bytes(changed)


def change_parquet_footer(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Change counts, lengths and offsets of a footer: its Thrift encoding consists of small bytes."""
    (length,) = struct.unpack("<I", data[-8:-4])
    return _changed_between(data, len(data) - 8 - length, len(data) - 4, rng)


def change_page_header(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Change the header of a page: its lengths, number of values or encoding."""
    metadata = pq.ParquetFile(io.BytesIO(data)).metadata
    chunk = metadata.row_group(rng.randrange(metadata.num_row_groups)).column(rng.randrange(metadata.num_columns))
    start = rng.choice([chunk.dictionary_page_offset, chunk.data_page_offset]) or chunk.data_page_offset
    return _changed_between(data, start, start + 30, rng)


def change_arrow_metadata(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Change a number of a message's flatbuffer, or of the footer."""
    starts = [i for i in range(0, len(data) - 8, 4) if data[i : i + 4] == b"\xff\xff\xff\xff"]
    start = rng.choice([*starts, max(0, len(data) - 600)])
    at = min(start + 4 * rng.randrange(80), len(data) - 8)
    if rng.random() < 0.5:
        return _changed_between(data, at, at + 8, rng)
    return data[:at] + struct.pack("<i", rng.choice(ODD_NUMBERS)) + data[at + 4 :]


Operation = Callable[[bytes, random.Random, Sequence[bytes]], bytes]
ANY: list[Operation] = [
    flip_bits, flip_bits, overwrite, truncate, truncate, insert, rearrange, rearrange, splice, change_ends,
]  # fmt: skip
OF_FORMAT: dict[str, list[Operation]] = {
    "parquet": [change_parquet_footer, change_parquet_footer, change_page_header, change_page_header],
    "arrow": [change_arrow_metadata, change_arrow_metadata, change_arrow_metadata],
    "json": [change_marks, change_marks, change_marks],
    "text": [change_marks, change_marks],
}


def mutate(format_name: str, data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Return `data` with one damage, sometimes with two; the result always differs.

    Args:
        format_name: a key of OF_FORMAT.
        data: a whole good file.
        rng: the source of randomness.
        others: good files of the same format, to splice with.
    """
    operations = ANY + OF_FORMAT[format_name]
    for _ in range(_TRIES):
        mutant = rng.choice(operations)(data, rng, others)
        if mutant and rng.random() < 0.2:
            mutant = rng.choice(ANY)(mutant, rng, others)
        if mutant != data:
            return mutant
    return data[:-1]


def _range(data: bytes, rng: random.Random) -> tuple[int, int]:
    start = rng.randrange(len(data))
    return start, min(len(data), start + 1 + rng.randrange(rng.choice([2, 16, 256, max(2, len(data) // 2)])))


def _changed_between(data: bytes, start: int, end: int, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        at = min(len(data) - 1, rng.randrange(max(0, start), max(1, end)))
        changed[at] = rng.choice([rng.choice(ODD_BYTES), rng.randrange(256), changed[at] ^ 1])
    return bytes(changed)
