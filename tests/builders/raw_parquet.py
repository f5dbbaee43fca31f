"""Parquet files written byte by byte, so that they can claim any size in a few hundred bytes.

One row group with one column `text` and one or two pages. Values that are not given are correct.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MAGIC = b"PAR1"
BYTE_ARRAY, REQUIRED, REPEATED, UTF8 = 6, 0, 2, 0
PLAIN, RLE, DELTA_LENGTH, DELTA_BYTES, RLE_DICTIONARY = 0, 3, 6, 7, 8
UNCOMPRESSED, SNAPPY, GZIP, BROTLI, ZSTD, LZ4 = 0, 1, 2, 4, 6, 7
DATA_PAGE, DICTIONARY_PAGE = 0, 2
MOST = 2**31 - 1


def varint(value: int) -> bytes:
    """Return an unsigned number as ULEB128."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _zigzag(value: int) -> bytes:
    return varint((value << 1) ^ (value >> 63))


@dataclass(frozen=True)
class I32:
    """A number of 32 bits in thrift; a plain int is one of 64."""

    value: int


def struct_of(fields: dict[int, Any]) -> bytes:
    """Return a struct in thrift's compact protocol."""
    out, before = b"", 0
    for number, value in fields.items():
        kind, data = _encoded(value)
        out += bytes([(number - before) << 4 | kind]) + data
        before = number
    return out + b"\0"


def _encoded(value: Any) -> tuple[int, bytes]:
    if isinstance(value, I32):
        return 5, _zigzag(value.value)
    if isinstance(value, int):
        return 6, _zigzag(value)
    if isinstance(value, bytes):
        return 8, varint(len(value)) + value
    if isinstance(value, dict):
        return 12, struct_of(value)
    kinds, items = zip(*map(_encoded, value), strict=True)
    head = bytes([len(items) << 4 | kinds[0]]) if len(items) < 15 else bytes([0xF0 | kinds[0]]) + varint(len(items))
    return 9, head + b"".join(items)


def plain(texts: Sequence[bytes]) -> bytes:
    """Return texts in the encoding PLAIN."""
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def run(count: int, value: int = 0) -> bytes:
    """Return `count` times one number of at most a byte, as a run of RLE."""
    return varint(count << 1) + bytes([value])


def levels(first: int, count: int, value: int) -> bytes:
    """Return `count` definition or repetition levels as a data page of version 1 holds them: `first`, then `value`s."""
    data = run(1, first) + run(count - 1, value)
    return struct.pack("<I", len(data)) + data


def page(kind: int, num_values: int, data: bytes, encoding: int, num_bytes: int | None = None) -> bytes:
    """Return a page; `num_bytes` is the uncompressed length that it claims."""
    values = {1: I32(num_values), 2: I32(encoding)}
    if kind == DATA_PAGE:
        values |= {3: I32(RLE), 4: I32(RLE)}
    header = {1: I32(kind), 2: I32(len(data) if num_bytes is None else num_bytes), 3: I32(len(data))}
    return struct_of({**header, (5 if kind == DATA_PAGE else 7): values}) + data


def file_of(
    pages: Sequence[bytes],
    num_rows: int,
    *,
    num_values: int | None = None,
    num_bytes: int | None = None,
    codec: int = UNCOMPRESSED,
    is_list: bool = False,
    histogram: Sequence[int] | None = None,
) -> bytes:
    """Return a file with these pages; of two, the first is a dictionary page.

    Args:
        pages: see `page`.
        num_rows: the rows of the row group, by the footer.
        num_values: the values of the column, by the footer.
        num_bytes: uncompressed bytes of the column, by the footer.
        codec: the column's codec.
        is_list: the column is of repeated strings.
        histogram: the histogram of definition levels, in the column's size statistics.
    """
    body = b"".join(pages)
    chunk = {
        1: I32(BYTE_ARRAY),
        2: [I32(RLE), I32(PLAIN), I32(RLE_DICTIONARY)],
        3: [b"text"],
        4: I32(codec),
        5: num_rows if num_values is None else num_values,
        6: len(body) if num_bytes is None else num_bytes,
        7: len(body),
        9: 4 + len(pages[0]) if len(pages) > 1 else 4,
    }
    if len(pages) > 1:
        chunk[11] = 4
    if histogram is not None:
        chunk[16] = {3: list(histogram)}
    leaf = {1: I32(BYTE_ARRAY), 3: I32(REPEATED if is_list else REQUIRED), 4: b"text", 6: I32(UTF8)}
    group = {1: [{2: 4, 3: chunk}], 2: chunk[6], 3: num_rows}
    footer = struct_of({1: I32(1), 2: [{4: b"schema", 5: I32(1)}, leaf], 3: num_rows, 4: [group]})
    return MAGIC + body + footer + struct.pack("<I", len(footer)) + MAGIC
