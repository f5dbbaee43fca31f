"""Merge the documents of a key range from spills or runs, in order and without duplicates, then gather their tokens.

Shards and parts of runs are made of such pieces, each of bounded size. The document tables are read first, then only
the tokens of documents that are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokenloom.storage.formats.arrays import UInt8s, runs_of, token_dtype
from tokenloom.storage.formats.classes import TEXT_CLASS
from tokenloom.storage.stores import open_store
from tokenloom.storage.work.marked import read_copies
from tokenloom.storage.work.records import (
    MergedFile,
    RunPart,
    RunPartRecord,
    partition_record_path,
    read_assignment,
    write_work_record,
)
from tokenloom.storage.work.segments import as_segments, take_segments
from tokenloom.storage.work.spill import (
    COPIES_SHIFT,
    MAX_RUN_SPILLS,
    ROW_BITS,
    TABLE_DTYPE,
    Spill,
    SpillDocuments,
    write_spill,
)
from tokenloom.tasks.building.plan import Build
from tokenloom.tasks.running import progress
from tokenloom.tasks.sizes import MAX_FAN_IN
from tokenloom.tokenizers.base import text_bytes

WRITE_TOKENS = 2**20
GAP_BYTES = 2**20  # reading a smaller gap takes less time than another read of a remote store


@dataclass(frozen=True)
class Piece:
    """The documents of a key range that stay, in order, and the number of those that are dropped.

    `counts` has its "duplicates", its further "copies", "left_copies" of identical documents, and "left_tokens".

    Shapes: rows (n,) of TABLE_DTYPE; file_index (n,), which file holds a document; spill_index (n,), which spill it
    comes from; ids (n,) large_string or None. Above the ROW_BITS of a row is how many copies marks give it.
    """

    rows: NDArray[Any]
    file_index: NDArray[np.uint32]
    spill_index: NDArray[np.uint32]
    ids: pa.Array | None
    counts: dict[str, int]


def merge_documents(
    build: Build, files: Sequence[MergedFile], is_copy: NDArray[np.bool_], split_index: int, keys: tuple[int, int]
) -> Piece:
    """Read the documents of a split in a range of keys from all files, but those that marks drop.

    They come in the total order (key, content, source, path, row). If the build drops duplicates, the first of
    identical documents with the most copies is kept.

    Args:
        build: the build.
        files: spills, or parts of runs of spills, in order.
        is_copy: by spill index: whether the spill holds further copies. The index of `files[i]`, if a spill, is i.
        split_index: the split.
        keys: [start, end).

    Raises WorkError if a file is missing or damaged.
    """
    tables = [np.empty(0, TABLE_DTYPE)]
    ids = [pa.array([], pa.large_string())]
    spill_indices = [np.empty(0, np.uint32)]
    num_read = np.zeros(2, np.int64)  # documents, and further copies
    num_tokens = 0
    for number, file in enumerate(files):
        spill = recorded_spill(str(build.store.root), file)
        first, rows = spill.documents(split_index, *keys)
        stays = np.ones(len(rows), dtype=bool)
        spill_index = np.full(len(rows), number, np.uint32)
        if isinstance(file, RunPart):
            index_in_run = (rows["row"] >> ROW_BITS) % MAX_RUN_SPILLS
            spill_index = (file.first + index_in_run).astype(np.uint32)
            rows = rows.copy()
            rows["row"] -= index_in_run << ROW_BITS
        elif file.marked:
            copies = read_copies(build.store, file.marked, file.index, first, first + len(rows))
            stays = copies > 0
            rows = rows.copy()
            rows["row"] |= copies.astype(np.uint64) << COPIES_SHIFT
        num_read += np.bincount(is_copy[spill_index[stays]], minlength=2)
        num_tokens += int(rows["num_tokens"][stays].sum(dtype=np.uint64))
        # Drop copies within the file now: a million of them must not stay in memory until the merge.
        if build.rules.deduplicate:
            stays[stays] = _is_taken(rows[stays])
        if build.has_ids:
            ids.append(spill.ids(rows).filter(pa.array(stays)))
        tables.append(rows[stays])
        spill_indices.append(spill_index[stays])
    file_index = np.repeat(np.arange(len(files), dtype=np.uint32), [len(table) for table in tables[1:]])
    rows = np.concatenate(tables)
    spill_index = np.concatenate(spill_indices)
    del tables
    order = _total_order(rows, spill_index)
    if build.rules.deduplicate:
        order = order[_is_taken(rows[order])]
    rows = rows[order]
    spill_index = spill_index[order]
    num_copies = int(is_copy[spill_index].sum())
    return Piece(
        rows=rows,
        file_index=file_index[order],
        spill_index=spill_index,
        ids=pa.concat_arrays(ids).take(pa.array(order)) if build.has_ids else None,
        counts={
            "duplicates": int(num_read[0]) - (len(rows) - num_copies),
            "copies": num_copies,
            "left_copies": int(num_read[1]) - num_copies,
            "left_tokens": num_tokens - int(rows["num_tokens"].sum(dtype=np.uint64)),
        },
    )


@lru_cache(maxsize=2 * MAX_FAN_IN)  # headers of 5 to 70 KB: each piece of a shard needs those of all of its files
def recorded_spill(root: str, file: MergedFile) -> Spill:
    """Return a file of the store at a path or URL, whose header is read once in a process: its checksum checks it."""
    return Spill(open_store(root), file.name, file.index, file.num_bytes, file.checksum)


def _is_taken(rows: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which of n rows a version takes: of identical ones, the first of those with the most copies.

    So all copies of a document come from one row. Identical ones, by key and content, are neighbours.
    """
    is_first = np.zeros(len(rows), dtype=bool)
    is_first[:1] = True
    for name in ("key", "content_high", "content_low"):
        is_first[1:] |= rows[name][1:] != rows[name][:-1]
    copies = rows["row"] >> COPIES_SHIFT
    if copies.max(initial=0) < 2:
        return is_first
    order = np.lexsort((255 - copies, np.cumsum(is_first)))  # stable
    is_taken = np.zeros(len(rows), dtype=bool)
    is_taken[order[is_first]] = True  # sorting within groups moves no group
    return is_taken


def _total_order(rows: NDArray[Any], spill_index: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return the order (key, content, input, row); spills come in the order of inputs and of their rows.

    A stable sort by key does nearly all the work; the other columns matter only where keys are equal.
    """
    order = np.argsort(rows["key"], kind="stable")
    keys = rows["key"][order]
    equal = keys[1:] == keys[:-1]
    if not equal.any():
        return order
    tied = np.zeros(len(rows), dtype=bool)
    tied[1:] |= equal
    tied[:-1] |= equal
    subset = order[tied]
    part = rows[subset]
    within = np.lexsort((part["row"], spill_index[subset], part["content_low"], part["content_high"], part["key"]))
    order[tied] = subset[within]
    return order


@dataclass(frozen=True)
class _Read:
    """Neighbouring documents of one file, read at once: its tokens [start, end).

    `members` (n,) are positions in the piece; `lengths` (2n,) alternate between the gap before a document, often 0
    tokens, and the document.
    """

    file: MergedFile
    start: int
    end: int
    members: NDArray[np.int64]
    lengths: NDArray[np.int64]


def _plan_reads(files: Sequence[MergedFile], piece: Piece, token_bytes: int) -> Iterator[_Read]:
    """Yield the reads for the tokens of a piece, file by file; gaps above GAP_BYTES are not read."""
    by_place = np.lexsort((piece.rows["start"], piece.file_index))
    starts = piece.rows["start"][by_place].astype(np.int64)
    ends = starts + piece.rows["num_tokens"][by_place]
    gaps = starts[1:] - ends[:-1]
    is_cut = (np.diff(piece.file_index[by_place]) != 0) | (gaps * token_bytes > GAP_BYTES)
    bounds = [0, *(np.flatnonzero(is_cut) + 1).tolist(), len(by_place)]
    for first, last in pairwise(bounds):
        lengths = np.zeros(2 * (last - first), np.int64)
        lengths[2::2] = gaps[first : last - 1]
        lengths[1::2] = ends[first:last] - starts[first:last]
        file = files[piece.file_index[by_place[first]]]
        yield _Read(file, int(starts[first]), int(ends[last - 1]), by_place[first:last], lengths)


#: some documents in order: their tokens, the number of tokens of each, and the classes of all tokens, if wanted
Gathered = tuple[NDArray[Any], NDArray[np.uint32], NDArray[np.uint8] | None]


def gather_tokens(build: Build, files: Sequence[MergedFile], piece: Piece) -> Iterator[Gathered]:
    """Yield the piece's documents in order, about WRITE_TOKENS at a time, with classes if the build has any.

    The tokens of a spill without classes are plain text.
    """
    dtype = token_dtype(build.tokenizer.vocab_size)
    if not len(piece.rows):
        return
    reads = list(_plan_reads(files, piece, dtype.itemsize))
    element = np.empty(len(piece.rows), np.int64)  # (n,) the place of each document among gaps and documents
    num_elements = 0
    for read in reads:
        element[read.members] = num_elements + 1 + 2 * np.arange(len(read.members))
        num_elements += len(read.lengths)
    lengths = np.concatenate([read.lengths for read in reads])
    tokens, classes = _read_all(str(build.store.root), reads, dtype, build.has_classes)
    documents = as_segments(tokens, lengths)
    classes_of = None if classes is None else as_segments(classes, lengths)
    num_tokens = piece.rows["num_tokens"]
    offsets = np.concatenate([[0], np.cumsum(num_tokens, dtype=np.int64)])
    for start, end in runs_of(offsets, WRITE_TOKENS):
        order = element[start:end]
        taken = None if classes_of is None else take_segments(classes_of, order, np.dtype(np.uint8))
        yield take_segments(documents, order, dtype), num_tokens[start:end], taken


def _read_all(
    root: str, reads: list[_Read], dtype: np.dtype[Any], has_classes: bool
) -> tuple[NDArray[Any], NDArray[np.uint8] | None]:
    """Return the tokens of all reads, one after the other, and their classes."""
    num_tokens = sum(read.end - read.start for read in reads)
    tokens = np.empty(num_tokens, dtype)
    classes = np.full(num_tokens, TEXT_CLASS, np.uint8) if has_classes else None
    start = 0
    for read in reads:
        file, end = read.file, start + read.end - read.start
        spill = recorded_spill(root, file)
        assert has_classes or not spill.has_classes  # else a version would lose its masks in silence
        _fill(tokens[start:end], spill.tokens(read.start, read.end))
        if classes is not None and spill.has_classes:
            _fill(classes[start:end], spill.classes(read.start, read.end))
        start = end
    return tokens, classes


def _fill(room: NDArray[Any], parts: Iterator[NDArray[Any]]) -> None:
    filled = 0
    for part in parts:
        room[filled : filled + len(part)] = part
        filled += len(part)


def merge_part(build: Build, digest: str, position: int) -> None:
    """Make the part of a run at a position of the assignment that `digest` names, then its record.

    Raises:
        WorkError: a spill is missing or damaged; its partition must be encoded again.
        StoreError: the part can't be written.
    """
    assignment = read_assignment(str(build.store.root), build.version, digest)
    part = assignment.parts[position]
    spills = assignment.spills[part.first : part.end]
    progress.report(progress.Working(f"merging spills {part.first:,} to {part.end:,}"))
    is_copy = np.array([spill.is_copy for spill in spills])
    piece = merge_documents(build, spills, is_copy, part.split_index, (part.start_key, part.end_key))
    rows, gathered = piece.rows, list(gather_tokens(build, spills, piece))
    rows["row"] |= piece.spill_index.astype(np.uint64) << ROW_BITS
    documents = documents_of(
        rows,
        split=np.full(len(rows), part.split_index, np.uint8),
        ids=pa.nulls(len(rows), pa.large_string()) if piece.ids is None else piece.ids,
        tokens=np.concatenate([np.empty(0, token_dtype(build.tokenizer.vocab_size)), *(each[0] for each in gathered)]),
        classes=np.concatenate([np.empty(0, np.uint8), *(each[2] for each in gathered)]) if build.has_classes else None,
    )
    spill = write_spill(build.store, part.name, 0, documents, len(build.rules.shares), {})
    dropped = {name: count for name, count in piece.counts.items() if name != "copies"}
    write_work_record(build.store, partition_record_path(part.name), RunPartRecord(spill, dropped))
    progress.report(progress.Advanced(num_documents=len(rows), num_bytes=spill.bytes, done=1))


def documents_of(
    rows: NDArray[Any], split: NDArray[np.uint8], ids: pa.Array, tokens: NDArray[Any], classes: UInt8s | None
) -> SpillDocuments:
    """Return the documents of rows of TABLE_DTYPE, (n,), with what these lack; ids may be null."""
    id_bytes, offsets = text_bytes(ids.fill_null("").cast(pa.large_string()))
    return SpillDocuments(
        split=split,
        key=rows["key"],
        content=np.stack([rows["content_high"], rows["content_low"]], axis=1),
        row=rows["row"],
        num_tokens=rows["num_tokens"],
        tokens=tokens,
        id_bytes=np.diff(offsets).astype(np.uint32),
        ids=id_bytes,
        classes=classes,
    )
