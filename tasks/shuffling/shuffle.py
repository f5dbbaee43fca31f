"""Shuffle: write one key range of a split as one shard.

A shard is made in pieces, each a part of its key range, so that memory does not grow with the shard.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.storage.formats.arrays import UInt64s, token_dtype
from tokenloom.storage.formats.blocks import encode_blocks
from tokenloom.storage.formats.canonical import sha256_of_bytes
from tokenloom.storage.formats.documents import DocumentTableWriter
from tokenloom.storage.formats.keys import equal_part
from tokenloom.storage.formats.mask_writer import MaskWriter
from tokenloom.storage.formats.shard_entries import BLOCKS, DOCS, MASK, FileEntry
from tokenloom.storage.formats.shard_writer import ShardFileRecord, ShardWriter
from tokenloom.storage.formats.statistics import DocumentCounter
from tokenloom.storage.stores import local_files
from tokenloom.storage.stores.store import Store
from tokenloom.storage.verification.file_checks import is_as_listed
from tokenloom.storage.versions.published import version_path
from tokenloom.storage.work.assignment import Assignment, ShardRange, read_assignment
from tokenloom.storage.work.shard_records import (
    ShardRecord,
    find_shard_record,
    write_shard_record,
)
from tokenloom.tasks.planning.plan import Build
from tokenloom.tasks.rows.exclusion import load_exclusions
from tokenloom.tasks.running import progress
from tokenloom.tasks.shuffling.merge import MergeRules, Piece, gather_tokens, merge_documents

# Small pieces use the same memory again. Of large builds, each piece reads a range of each of many spills.
_MIN_PIECE_BYTES, _MAX_PIECE_BYTES, _SPILL_PIECE_BYTES = 2**25, 2**27, 2**20
_PIECE_DOCUMENTS = 1_000_000


def shuffle_shard(build: Build, position: int) -> ShardRecord:
    """Make the shard at a position of the assignment, and its document table, unless an earlier process has.

    Raises:
        WorkError: a spill is missing or damaged; its partition must be encoded again.
        StoreError: the shard can't be written.
    """
    assignment = read_assignment(build.store, build.version)
    shard = assignment.shards[position]
    if record := _finished_shard(build, shard, assignment.encoders):
        progress.report(progress.Reused(1, record.tokens + record.left_tokens))
        return record
    progress.report(progress.Working(f"writing shard {shard.name}"))
    record = _write_shard(build, assignment, shard)
    write_shard_record(build.store, build.version, record)
    return record


def _finished_shard(build: Build, shard: ShardRange, encoders: Collection[str]) -> ShardRecord | None:
    """Return the record of a shard that an earlier process made, if its files are undamaged."""
    record = find_shard_record(build.store, build.version, shard.name, encoders)
    if record is None:
        return None
    progress.report(progress.Working(f"verifying shard {shard.name}"))
    if is_as_listed(build.store, build.version, record.entry()):
        return record
    place = build.store.place(version_path(build.version, shard.name))
    progress.report(progress.Message(f"{place}: its files were damaged after they were written; writing them again"))
    return None


def _write_shard(build: Build, assignment: Assignment, shard: ShardRange) -> ShardRecord:
    store, path = build.store, version_path(build.version, shard.name)
    measured = _ShardResult(build, assignment)
    excluded = load_exclusions(store, build.version) if build.excludes else None
    rules = MergeRules(build.rules.deduplicate, excluded, build.has_ids)
    with ExitStack() as stack:
        token_file = stack.enter_context(store.writing(f"{path}.tok"))
        table_file = stack.enter_context(store.writing(path + DOCS))
        mask_file = stack.enter_context(store.writing(path + MASK)) if build.has_classes else None
        start_sync = stack.enter_context(_syncing(store, token_file))
        tokens = stack.enter_context(ShardWriter(token_file, build.tokenizer.vocab_size, _info(build, shard)))
        table = stack.enter_context(DocumentTableWriter(table_file, build.has_ids, build.has_classes))
        mask = MaskWriter(mask_file) if mask_file else None
        for start_key, end_key in _pieces(shard, len(assignment.spills), build):
            piece = merge_documents(store, assignment.spills, shard.split_index, start_key, end_key, rules)
            measured.add_piece(piece)
            progress.report(progress.Advanced(done=piece.duplicates.num_tokens + piece.excluded.num_tokens))
            dtype, hashes = token_dtype(build.tokenizer.vocab_size), [np.empty(0, np.uint64)]
            for part, num_tokens, classes in gather_tokens(store, assignment.spills, piece, dtype, build.has_classes):
                measured.add_tokens(part, num_tokens)
                tokens.append(part, num_tokens)
                if mask and classes is not None:
                    hashes.append(mask.append(classes, num_tokens))
                progress.report(
                    progress.Advanced(
                        num_documents=len(num_tokens), num_bytes=part.nbytes, num_tokens=len(part), done=len(part)
                    )
                )
            measured.write_rows(piece, table, np.concatenate(hashes) if mask else None)
            start_sync()
        written, mask_blocks = tokens.finish(), mask.finish() if mask else None
    assert tokens.blocks is not None and table.written is not None  # the files are complete
    blocks = encode_blocks(replace(tokens.blocks, mask=mask_blocks))
    store.replace(path + BLOCKS, blocks)
    files = {DOCS: table.written, BLOCKS: FileEntry(len(blocks), sha256_of_bytes(blocks))}
    if mask_blocks:
        files[MASK] = FileEntry(mask_blocks.num_bytes, mask_blocks.sha256)
    return measured.record(shard, written, files, mask.counts() if mask else {}, tuple(assignment.encoders))


def _info(build: Build, shard: ShardRange) -> dict[str, Any]:
    """Return the JSON block of a shard's header."""
    return {
        "dataset": build.dataset,
        "eot_id": build.tokenizer.eot_id,
        "seed": build.rules.seed,
        "shard_index": shard.shard_index,
        "split": shard.split,
        "tokenizer": build.tokenizer.name,
        "tokenizer_fingerprint": build.tokenizer.fingerprint,
        "vocab_size": build.tokenizer.vocab_size,
    }


def _syncing(store: Store, file: IO[bytes]) -> AbstractContextManager[Callable[[], None]]:
    """Yield what starts to write a file to the device while the next piece is merged; nothing for a remote store."""
    return local_files.syncing(file) if store.is_local else nullcontext(lambda: None)


def _pieces(shard: ShardRange, num_spills: int, build: Build) -> list[tuple[int, int]]:
    token_bytes = shard.num_tokens * (token_dtype(build.tokenizer.vocab_size).itemsize + build.has_classes)
    piece_bytes = min(max(_MIN_PIECE_BYTES, num_spills * _SPILL_PIECE_BYTES), _MAX_PIECE_BYTES)
    max_documents = _PIECE_DOCUMENTS // 8 if build.has_ids else _PIECE_DOCUMENTS  # an id may take 1 KB
    count = max(1, -(-token_bytes // piece_bytes), -(-shard.num_documents // max(1, max_documents)))
    return [equal_part(i, count, shard.start_key, shard.end_key) for i in range(count)]


class _ShardResult:
    """Measures a shard while it is written, for the validation before publishing."""

    def __init__(self, build: Build, assignment: Assignment) -> None:
        spills = assignment.spills
        self._eot_id = build.tokenizer.eot_id
        self._inputs = np.array([entry.input_index for entry in spills], np.uint32)  # (n,) for n spills
        self._sources = np.array([entry.source_index for entry in spills], np.intp)
        self._duplicates = self._excluded = self._left_tokens = self._bad_ends = 0
        self._max_id = -1
        self._num_tokens = 0
        self._first_key: int | None = None
        self._last_key: int | None = None
        self._documents = DocumentCounter(assignment.sources)

    def add_piece(self, piece: Piece) -> None:
        """Count a piece."""
        rows = piece.rows
        self._duplicates += piece.duplicates.num_documents
        self._excluded += piece.excluded.num_documents
        self._left_tokens += piece.duplicates.num_tokens + piece.excluded.num_tokens
        if not len(rows):
            return
        self._documents.add(rows["num_tokens"], self._sources[piece.spill_position])
        self._first_key = int(rows["key"][0]) if self._first_key is None else self._first_key
        self._last_key = int(rows["key"][-1])

    def write_rows(self, piece: Piece, table: DocumentTableWriter, classes: UInt64s | None) -> None:
        """Write the rows of a piece into the document table; `classes` are (n,) hashes of those of their tokens."""
        rows = piece.rows
        if len(rows):
            inputs, content = self._inputs[piece.spill_position], _contents(rows)
            table.append(rows["num_tokens"], inputs, rows["row"], content, rows["key"], piece.ids, classes)

    def add_tokens(self, tokens: NDArray[Any], num_tokens: NDArray[np.uint32]) -> None:
        """Record the largest id of some documents, and whether each document ends with end-of-text."""
        last = np.cumsum(num_tokens, dtype=np.int64) - 1
        self._max_id = max(self._max_id, int(tokens.max(initial=0)))
        self._bad_ends += int((tokens[last] != self._eot_id).sum())
        self._num_tokens += len(tokens)

    def record(
        self,
        shard: ShardRange,
        file: ShardFileRecord,
        files: dict[str, FileEntry],
        class_counts: dict[str, int],
        encoders: tuple[str, ...],
    ) -> ShardRecord:
        """Return the record of the shard, from what was measured and from its files."""
        return ShardRecord(
            name=shard.name,
            split=shard.split,
            bytes=file.bytes,
            tokens=file.tokens,
            documents=file.documents,
            sha256=file.sha256,
            files=files,
            first_key=_hexadecimal(self._first_key),
            last_key=_hexadecimal(self._last_key),
            duplicates=self._duplicates,
            excluded=self._excluded,
            left_tokens=self._left_tokens,
            max_id=self._max_id,
            bad_ends=self._bad_ends,
            encoders=encoders,
            statistics=self._documents.statistics(),
            class_counts=class_counts,
        )


def _contents(rows: NDArray[Any]) -> UInt64s:
    """Return the contents of rows of a spill, (n, 2): high and low half."""
    return np.stack([rows["content_high"], rows["content_low"]], axis=1)


def _hexadecimal(key: int | None) -> str | None:
    return None if key is None else f"{key:016x}"
