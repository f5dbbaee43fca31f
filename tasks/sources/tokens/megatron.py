"""Megatron's indexed dataset: a .bin with the ids, and an .idx with the lengths of its sequences.

The .idx, little-endian without alignment: 9 bytes of magic, u64 version, u8 code of the type, u64 sequences, u64
documents + 1, i32 lengths, i64 byte offsets, i64 first sequence of each document and, last, the number of sequences. A
document is one sequence or several, which are joined.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import IO, NamedTuple

import numpy as np

from tokenloom.errors import InputError
from tokenloom.storage.formats.arrays import AnyDtype, Int64s
from tokenloom.tasks.sources.base import INDEX, REPAIR
from tokenloom.tasks.sources.files import input_bytes, open_input
from tokenloom.tasks.sources.listing import FoundFile, LeaveOut
from tokenloom.tasks.sources.tokens.base import Layout, Side, TokenFormat, read_values

MAGIC, VERSION = b"MMIDIDX\0\0", 1
HEAD = struct.Struct("<9sQBQQ")
_TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
LENGTH, OFFSET = np.dtype("<i4"), np.dtype("<i8")


class _Head(NamedTuple):
    """The head of an .idx."""

    dtype: AnyDtype
    num_sequences: int
    num_documents: int

    @property
    def offsets(self) -> int:
        """The byte at which the offsets of sequences begin."""
        return HEAD.size + self.num_sequences * LENGTH.itemsize

    @property
    def documents(self) -> int:
        """The byte at which the first sequences of documents begin."""
        return self.offsets + self.num_sequences * OFFSET.itemsize

    @property
    def num_bytes(self) -> int:
        """The length of the .idx."""
        return self.documents + (self.num_documents + 1) * OFFSET.itemsize


class Format(TokenFormat):
    """PREFIX.bin and PREFIX.idx."""

    name = "megatron"
    suffix = ".bin"

    def matching(self, path: str, leave_out: LeaveOut | None) -> list[FoundFile]:
        """See TokenFormat.matching; a path may be the prefix alone, as Megatron's own options are."""
        is_prefix = not path.endswith((self.suffix, "*"))
        return super().matching(path.removesuffix(".idx") + self.suffix if is_prefix else path, leave_out)

    def sides(self, url: str) -> Sequence[Side]:
        """See TokenFormat.sides."""
        return [Side(INDEX, _index(url), is_required=True)]

    def layout(self, url: str) -> Layout:
        """See TokenFormat.layout; compares where the last sequence ends with the length of the .bin."""
        index, num_bytes = _index(url), input_bytes(url)
        with open_input(index) as file:
            head = _read_head(file, index, input_bytes(index))
            described = 0
            if last := head.num_sequences:
                length = read_values(file, index, head.offsets - LENGTH.itemsize, 1, LENGTH)
                offset = read_values(file, index, head.documents - OFFSET.itemsize, 1, OFFSET)
                described = int(offset[0]) + int(length[0]) * head.dtype.itemsize
            first, end = (
                int(read_values(file, index, at, 1, OFFSET)[0])
                for at in (head.documents, head.num_bytes - OFFSET.itemsize)
            )
        if described != num_bytes:
            raise InputError(
                f"{index}: its sequences end at byte {described:,}, and {url} has {num_bytes:,} bytes: one of the two "
                "was cut, or they do not belong together; copy both files again"
            )
        if (first, end) != (0, last):
            raise InputError(f"{index}: its documents are sequences [{first}, {end}) of [0, {last}); {REPAIR}")
        return Layout(head.num_documents, num_bytes // head.dtype.itemsize, head.dtype)

    def bounds(self, url: str, start: int, end: int) -> Int64s:
        """See TokenFormat.bounds."""
        index = _index(url)
        with open_input(index) as file:
            head = _read_head(file, index, input_bytes(index))
            at = head.documents + start * OFFSET.itemsize
            firsts = read_values(file, index, at, end - start + 1, OFFSET)
            first, last = int(firsts[0]), int(firsts[-1])
            if not 0 <= first <= last <= head.num_sequences or (np.diff(firsts) < 0).any():
                raise InputError(
                    f"{index}: the first sequences of documents [{start:,}, {end:,}) do not ascend; {REPAIR}"
                )
            before = max(0, first - 1)  # its end is where the first of them must begin
            lengths = read_values(file, index, HEAD.size + before * LENGTH.itemsize, last - before, LENGTH)
            offsets = read_values(file, index, head.offsets + before * OFFSET.itemsize, last - before, OFFSET)
        ends = _checked_ends(index, before, lengths, offsets, head.dtype, input_bytes(url))
        return (ends // head.dtype.itemsize)[firsts - before]  # type: ignore[no-any-return]


def _index(url: str) -> str:
    return url.removesuffix(".bin") + ".idx"


def _read_head(file: IO[bytes], index: str, num_bytes: int) -> _Head:
    """Return the head of an open .idx, compared with its length."""
    if num_bytes < HEAD.size:
        raise InputError(f"{index}: {num_bytes} bytes are too few for an .idx: it was cut; copy the file again")
    file.seek(0)
    magic, version, code, num_sequences, num_bounds = HEAD.unpack(file.read(HEAD.size))
    if (magic, version) != (MAGIC, VERSION):
        raise InputError(f"{index}: not an .idx of Megatron, version 1: it does not begin with MMIDIDX; check the file")
    if code not in _TYPES:
        raise InputError(f"{index}: type {code} of its ids is not an integer type of Megatron; {REPAIR}")
    head = _Head(np.dtype(_TYPES[code]), num_sequences, num_bounds - 1)
    if num_bounds < 1 or head.num_bytes != num_bytes:
        raise InputError(
            f"{index}: {num_sequences:,} sequences and {num_bounds:,} bounds of documents need {head.num_bytes:,} "
            f"bytes, and it has {num_bytes:,}: it was cut or changed; copy the file again"
        )
    return head


def _checked_ends(index: str, first: int, lengths: Int64s, offsets: Int64s, dtype: AnyDtype, num_bytes: int) -> Int64s:
    """Return the bytes at which n sequences begin and, last, where the last one ends, (n + 1,).

    Raises InputError unless each begins where the one before it ends, the first of the file at 0.
    """
    ends = offsets + lengths.astype(np.int64) * dtype.itemsize
    begins = np.concatenate([offsets[:1] if first else [0], ends[:-1]])
    is_wrong = (lengths < 0) | (offsets < 0) | (ends > num_bytes) | (offsets % dtype.itemsize != 0)
    is_wrong |= offsets != begins[: len(offsets)]
    if is_wrong.any():
        i = int(is_wrong.argmax())
        raise InputError(
            f"{index}: sequence {first + i:,}, at byte {offsets[i]:,} with {lengths[i]:,} tokens, does not begin where "
            f"the one before it ends; {REPAIR}"
        )
    return np.concatenate([offsets[:1], ends]) if len(ends) else np.zeros(1, np.int64)
