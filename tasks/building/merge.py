"""Merge the documents of a key range from all spills, in order and without duplicates, then gather their tokens.

A shard is made of such pieces, each of bounded size. The document tables are read first, then only the tokens of
documents that are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokenloom.storage.formats.arrays import runs_of, token_dtype
from tokenloom.storage.formats.classes import TEXT_CLASS
from tokenloom.storage.stores import open_store
from tokenloom.storage.work.marked import read_copies
from tokenloom.storage.work.records import SpillEntry
from tokenloom.storage.work.segments import as_segments, take_segments
from tokenloom.storage.work.spill import TABLE_DTYPE, Spill
from tokenloom.tasks.building.plan import Build

WRITE_TOKENS = 2**20
GAP_BYTES = 2**20  # reading a smaller gap takes less time than another read of a remote store


@dataclass(frozen=True)
class Piece:
    """The documents of a key range that stay, in order, and the number of those that are dropped.

    `counts` has its "duplicates", its further "copies", "left_copies" of identical documents, and "left_tokens".

    Shapes: rows (n,) of TABLE_DTYPE, spill_position (n,), ids (n,) large_string or None.
    """

    rows: NDArray[Any]
    spill_position: NDArray[np.uint32]
    ids: pa.Array | None
    counts: dict[str, int]


def merge_documents(build: Build, spills: list[SpillEntry], split_index: int, start_key: int, end_key: int) -> Piece:
    """Read the documents of a split with keys in [start_key, end_key) from all spills, but those that marks drop.

    They come in the total order (key, content, source, path, row). If the build drops duplicates, the first of
    identical documents is kept.

    Raises WorkError if a spill is missing or damaged.
    """
    tables, ids = [np.empty(0, TABLE_DTYPE)], [pa.array([], pa.large_string())]
    num_read = np.zeros(2, np.int64)  # documents, and further copies
    num_tokens = 0
    for entry in spills:
        spill = recorded_spill(str(build.store.root), entry)
        first, rows = spill.documents(split_index, start_key, end_key)
        stays = np.ones(len(rows), dtype=bool)
        if entry.marked:
            stays = read_copies(build.store, entry.marked, entry.index, first, first + len(rows)) > 0
        num_read[int(entry.is_copy)] += int(stays.sum())
        num_tokens += int(rows["num_tokens"][stays].sum(dtype=np.uint64))
        # Drop copies within the file now: a million of them must not stay in memory until the merge.
        if build.rules.deduplicate:
            stays[stays] = _is_first(rows[stays])
        if build.has_ids:
            ids.append(spill.ids(rows).filter(pa.array(stays)))
        tables.append(rows[stays])
    position = np.repeat(np.arange(len(spills), dtype=np.uint32), [len(table) for table in tables[1:]])
    rows = np.concatenate(tables)
    del tables
    order = _total_order(rows, position)
    if build.rules.deduplicate:
        order = order[_is_first(rows[order])]
    rows, position = rows[order], position[order]
    num_copies = int(np.array([entry.is_copy for entry in spills], bool)[position].sum())
    return Piece(
        rows=rows,
        spill_position=position,
        ids=pa.concat_arrays(ids).take(pa.array(order)) if build.has_ids else None,
        counts={
            "duplicates": int(num_read[0]) - (len(rows) - num_copies),
            "copies": num_copies,
            "left_copies": int(num_read[1]) - num_copies,
            "left_tokens": num_tokens - int(rows["num_tokens"].sum(dtype=np.uint64)),
        },
    )


@lru_cache(maxsize=2**14)  # headers of 5 to 10 KB: all of a build of 1 TB, because each piece of a shard needs all
def recorded_spill(root: str, entry: SpillEntry) -> Spill:
    """Return a spill of the store at a path or URL, whose header is read once in a process: the entry checks it."""
    return Spill(open_store(root), entry.name, entry.index, entry.num_bytes, entry.checksum)


def _is_first(rows: NDArray[Any]) -> NDArray[np.bool_]:
    """Return whether each row differs from the row before it; identical ones, by key and content, are neighbours."""
    first = np.zeros(len(rows), dtype=bool)
    first[:1] = True
    for name in ("key", "content_high", "content_low"):
        first[1:] |= rows[name][1:] != rows[name][:-1]
    return first


def _total_order(rows: NDArray[Any], position: NDArray[np.uint32]) -> NDArray[np.int64]:
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
    within = np.lexsort((part["row"], position[subset], part["content_low"], part["content_high"], part["key"]))
    order[tied] = subset[within]
    return order


@dataclass(frozen=True)
class _Run:
    """Neighbouring documents of one spill, read at once: its tokens [start, end).

    `members` (n,) are positions in the piece; `lengths` (2n,) alternate between the gap before a document, often 0
    tokens, and the document.
    """

    entry: SpillEntry
    start: int
    end: int
    members: NDArray[np.int64]
    lengths: NDArray[np.int64]


def _plan_runs(spills: list[SpillEntry], piece: Piece, token_bytes: int) -> Iterator[_Run]:
    """Yield the reads for the tokens of a piece, spill by spill; gaps above GAP_BYTES are not read."""
    by_place = np.lexsort((piece.rows["start"], piece.spill_position))
    starts = piece.rows["start"][by_place].astype(np.int64)
    ends = starts + piece.rows["num_tokens"][by_place]
    gaps = starts[1:] - ends[:-1]
    is_cut = (np.diff(piece.spill_position[by_place]) != 0) | (gaps * token_bytes > GAP_BYTES)
    bounds = [0, *(np.flatnonzero(is_cut) + 1).tolist(), len(by_place)]
    for first, last in pairwise(bounds):
        lengths = np.zeros(2 * (last - first), np.int64)
        lengths[2::2] = gaps[first : last - 1]
        lengths[1::2] = ends[first:last] - starts[first:last]
        entry = spills[piece.spill_position[by_place[first]]]
        yield _Run(entry, int(starts[first]), int(ends[last - 1]), by_place[first:last], lengths)


#: some documents in order: their tokens, the number of tokens of each, and the classes of all tokens, if wanted
Gathered = tuple[NDArray[Any], NDArray[np.uint32], NDArray[np.uint8] | None]


def gather_tokens(build: Build, spills: list[SpillEntry], piece: Piece) -> Iterator[Gathered]:
    """Yield the piece's documents in order, about WRITE_TOKENS at a time, with classes if the build has any.

    The tokens of a spill without classes are plain text.
    """
    dtype = token_dtype(build.tokenizer.vocab_size)
    if not len(piece.rows):
        return
    runs = list(_plan_runs(spills, piece, dtype.itemsize))
    element = np.empty(len(piece.rows), np.int64)  # (n,) the place of each document among gaps and documents
    num_elements = 0
    for run in runs:
        element[run.members] = num_elements + 1 + 2 * np.arange(len(run.members))
        num_elements += len(run.lengths)
    lengths = np.concatenate([run.lengths for run in runs])
    tokens, classes = _read_runs(str(build.store.root), runs, dtype, build.has_classes)
    documents = as_segments(tokens, lengths)
    classes_of = None if classes is None else as_segments(classes, lengths)
    num_tokens = piece.rows["num_tokens"]
    offsets = np.concatenate([[0], np.cumsum(num_tokens, dtype=np.int64)])
    for start, end in runs_of(offsets, WRITE_TOKENS):
        order = element[start:end]
        taken = None if classes_of is None else take_segments(classes_of, order, np.dtype(np.uint8))
        yield take_segments(documents, order, dtype), num_tokens[start:end], taken


def _read_runs(
    root: str, runs: list[_Run], dtype: np.dtype[Any], has_classes: bool
) -> tuple[NDArray[Any], NDArray[np.uint8] | None]:
    """Return the tokens of all runs, one after the other, and their classes."""
    num_tokens = sum(run.end - run.start for run in runs)
    tokens = np.empty(num_tokens, dtype)
    classes = np.full(num_tokens, TEXT_CLASS, np.uint8) if has_classes else None
    start = 0
    for run in runs:
        spill, end = recorded_spill(root, run.entry), start + run.end - run.start
        assert has_classes or not spill.has_classes  # else a version would lose its masks in silence
        _fill(tokens[start:end], spill.tokens(run.start, run.end))
        if classes is not None and spill.has_classes:
            _fill(classes[start:end], spill.classes(run.start, run.end))
        start = end
    return tokens, classes


def _fill(room: NDArray[Any], parts: Iterator[NDArray[Any]]) -> None:
    filled = 0
    for part in parts:
        room[filled : filled + len(part)] = part
        filled += len(part)
