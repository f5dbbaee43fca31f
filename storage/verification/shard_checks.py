"""The check of a shard and of its document table, in one pass over the bytes of each.

Length, SHA-256, the checksums of the sections, the largest id and the document offsets come from the same blocks, while
they are in the processor's cache: SHA-256 takes nine tenths of the time (docs/guides/verify.md). A file beside the
shard is parsed only if its SHA-256 is right, so it is parsed only as it was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from tokenloom.errors import FormatError
from tokenloom.storage.formats.arrays import AnyArray, AnyDtype
from tokenloom.storage.formats.documents import column_values, table_schema
from tokenloom.storage.formats.records import JsonObject
from tokenloom.storage.formats.shard import ShardHeader, read_header
from tokenloom.storage.formats.shard_entries import DOCS, ShardEntry, beside
from tokenloom.storage.stores.store import Store
from tokenloom.storage.verification.file_checks import (
    NOT_SHA256,
    Taker,
    bare_message,
    checked_file,
    collecting_problems,
    read_once,
)
from tokenloom.storage.versions.published import version_path
from tokenloom.wording import counted


@dataclass(frozen=True)
class ShardClaim:
    """What a manifest says of one shard.

    `info` is what the JSON block of its header must say. `num_inputs` is the number of the version's inputs, None if
    inputs.json is damaged.
    """

    version: str
    entry: ShardEntry
    info: JsonObject
    num_inputs: int | None

    @property
    def path(self) -> str:
        """The path of the `.tok` file, relative to the dataset's folder."""
        return version_path(self.version, self.entry.name)

    @property
    def vocab_size(self) -> int:
        """The size of the version's vocabulary."""
        return cast(int, self.info["vocab_size"])

    @property
    def docs_path(self) -> str:
        """The path of its document table."""
        return self.path_beside(DOCS)

    def path_beside(self, suffix: str) -> str:
        """Return the path of the file beside it with a suffix, relative to the dataset's folder."""
        return version_path(self.version, beside(self.entry.name, suffix))


def check_tokens(store: Store, claim: ShardClaim, take: Taker) -> tuple[ShardHeader | None, list[str]]:
    """Read a `.tok` file once; return its header, None if the file is damaged, and its problems.

    Args:
        store: the dataset's folder.
        claim: what the manifest says.
        take: called with every block.
    """
    problems: list[str] = []
    trusted: ShardHeader | None = None
    with collecting_problems(store, claim.path, problems):
        header, bad_header = _header(store, claim.path)
        sections = _SectionCheck(header) if header else None

        def take_block(position: int, block: memoryview) -> None:
            if sections:
                sections.take(position, block)
            take(position, block)

        num_bytes, sha256 = read_once(store, claim.path, take_block)
        if num_bytes != claim.entry.bytes:
            problems.append(f"{counted(num_bytes, 'byte')}, the manifest says {claim.entry.bytes:,}")
        if sha256 != claim.entry.sha256:
            problems.append(NOT_SHA256)
        problems += bad_header
        if header and sections:
            problems += [*_contradictions(header, claim), *sections.problems(claim.vocab_size)]
        trusted = None if problems else header
    return trusted, problems


def check_documents(
    store: Store,
    claim: ShardClaim,
    header: ShardHeader | None,
    take: Taker,
    take_batch: Callable[[pa.RecordBatch], None] | None = None,
) -> list[str]:
    """Read a document table once; return its problems.

    Args:
        store: the dataset's folder.
        claim: what the manifest says.
        header: the shard's header; None if it is damaged, then the two are not compared.
        take: called with every block.
        take_batch: called with every batch of rows, if the table's SHA-256 is right.
    """
    problems: list[str] = []
    with (
        collecting_problems(store, claim.docs_path, problems),
        checked_file(store, claim.docs_path, claim.entry.files[DOCS].sha256, take) as file,
    ):
        if file is None:
            return [NOT_SHA256]
        reader = pa.ipc.open_file(file)
        if reader.schema not in [table_schema(claim.entry.has_mask, has_ids) for has_ids in (False, True)]:
            return ["its columns are not those of a document table"]
        table = _TableCheck(claim)
        for i in range(reader.num_record_batches):
            batch = reader.get_batch(i)
            batch.validate()  # buffers as long as its rows need
            table.take(batch)
            if take_batch:
                take_batch(batch)
        problems += table.problems(header)
    return problems


def _header(store: Store, path: str) -> tuple[ShardHeader | None, list[str]]:
    try:
        return read_header(store, path), []
    except FormatError as error:
        return None, [bare_message(error, store.place(path))]


def _contradictions(header: ShardHeader, claim: ShardClaim) -> Iterator[str]:
    """Yield where the header contradicts the manifest."""
    entry = claim.entry
    pairs = [
        ("bytes", header.file_bytes, entry.bytes),
        ("tokens", header.num_tokens, entry.tokens),
        ("documents", header.num_documents, entry.documents),
        *((name, header.info.get(name), wanted) for name, wanted in claim.info.items()),
    ]
    for name, found, wanted in pairs:
        if found != wanted:
            yield f"its header says {name} {found!r}, the manifest {wanted!r}"


class _SectionCheck:
    """Checks the sections of a shard, block by block."""

    def __init__(self, header: ShardHeader) -> None:
        self._header = header
        self._tokens_end = header.tokens_start + header.num_tokens * header.token_bytes
        self._tokens_hash, self._offsets_hash = xxhash.xxh3_128(), xxhash.xxh3_128()
        self._max_id = -1
        self._last_offset: int | None = None
        self._in_order = True

    def take(self, position: int, block: memoryview) -> None:
        """Check a block; blocks come in order."""
        header = self._header
        if len(part := _part(block, position, header.tokens_start, header.offsets_start)):
            self._tokens_hash.update(part)
            ids = _array(_part(block, position, header.tokens_start, self._tokens_end), header.dtype)
            self._max_id = max(self._max_id, int(ids.max(initial=0)) if len(ids) else -1)
        if len(part := _part(block, position, header.offsets_start, header.file_bytes)):
            self._offsets_hash.update(part)
            self._take_offsets(_array(part, np.dtype("<u8")))

    def _take_offsets(self, offsets: NDArray[np.uint64]) -> None:
        if not len(offsets):
            return
        expected = 0 if self._last_offset is None else int(offsets[0])
        self._in_order &= expected == int(offsets[0]) >= (self._last_offset or 0)
        self._in_order &= not bool((offsets[1:] < offsets[:-1]).any())
        self._last_offset = int(offsets[-1])

    def problems(self, vocab_size: int) -> Iterator[str]:
        """Yield the problems, after the last block."""
        if self._tokens_hash.digest() != self._header.tokens_checksum:
            yield "the checksum of its tokens does not match"
        if self._offsets_hash.digest() != self._header.offsets_checksum:
            yield "the checksum of its document offsets does not match"
        if not self._in_order or self._last_offset != self._header.num_tokens:
            yield "its document offsets do not increase from 0 to the number of tokens"
        if self._max_id >= vocab_size:
            yield f"id {self._max_id} in a vocabulary of {vocab_size}"


class _TableCheck:
    """Checks a document table, batch by batch."""

    def __init__(self, claim: ShardClaim) -> None:
        self._claim = claim
        self._num_rows = self._end = 0
        self._first_key: int | None = None
        self._last_key: int | None = None
        self._max_input = -1
        self._starts_hash = xxhash.xxh3_128()
        self._wrong: dict[str, None] = {}  # each once, in order

    def take(self, batch: pa.RecordBatch) -> None:
        """Check a batch; batches come in order."""
        if not batch.num_rows:
            return
        if any(batch[field.name].null_count for field in batch.schema if not field.nullable):
            self._wrong["a value is null"] = None
            return
        start, num_tokens, key = (column_values(batch, name) for name in ("start", "num_tokens", "key"))
        ends = start + num_tokens
        if int(start[0]) != self._end or bool((start[1:] != ends[:-1]).any()):
            self._wrong["its documents are not contiguous"] = None
        if bool((key[1:] < key[:-1]).any()) or int(key[0]) < (self._last_key or 0):
            self._wrong["its keys are not in ascending order"] = None
        self._starts_hash.update(start.astype("<u8").data)
        self._first_key = int(key[0]) if self._first_key is None else self._first_key
        self._last_key, self._end = int(key[-1]), int(ends[-1])
        self._max_input = max(self._max_input, int(column_values(batch, "input").max()))
        self._num_rows += batch.num_rows

    def problems(self, header: ShardHeader | None) -> Iterator[str]:
        """Yield the problems, after the last batch."""
        yield from self._wrong
        entry = self._claim.entry
        if self._num_rows != entry.documents:
            yield f"{counted(self._num_rows, 'row')}, the manifest says {counted(entry.documents, 'document')}"
        for name, key, listed in (
            ("first_key", self._first_key, entry.first_key),
            ("last_key", self._last_key, entry.last_key),
        ):
            if (text := None if key is None else f"{key:016x}") != listed:
                yield f"its {name} is {text}, the manifest says {listed}"
        if self._claim.num_inputs is not None and self._max_input >= self._claim.num_inputs:
            yield f"it names input {self._max_input}, the version has {self._claim.num_inputs}"
        # The offsets of a shard are the starts of its documents and its end: one checksum compares them all.
        self._starts_hash.update(np.array([self._end], "<u8").data)
        if header and self._starts_hash.digest() != header.offsets_checksum:
            yield "its documents do not start where the document offsets of the shard say"


def _part(block: memoryview, position: int, start: int, end: int) -> memoryview:
    """Return the part of a block at `position` that is in the bytes [start, end) of the file."""
    return block[max(0, start - position) : max(0, end - position)]


def _array(data: memoryview, dtype: AnyDtype) -> AnyArray:
    """Return the whole values; in a file that was cut short the last one may be incomplete."""
    return np.frombuffer(data[: len(data) - len(data) % dtype.itemsize], dtype)
