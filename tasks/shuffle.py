"""Shuffle: one key range of a split to one shard.

A shard is made in pieces of bounded size, each a part of its key range: first the document tables of every spill,
merged and without duplicates, then only the tokens that stay. So memory is bounded whatever the shard's length.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.storage.canonical import canonical_json
from tokenloom.storage.documents import DocumentTableWriter
from tokenloom.storage.filesystem import Store
from tokenloom.storage.keys import equal_part, sample_keys
from tokenloom.storage.shard import ShardWriter, token_dtype
from tokenloom.storage.spill import TABLE_DTYPE, Spill, take_documents
from tokenloom.storage.versions import version_path
from tokenloom.tasks import progress
from tokenloom.tasks.assign import Assignment, ShardRange, SpillEntry, candidate_path, read_assignment

_PIECE_TOKEN_BYTES = 2**27
_PIECE_DOCUMENTS = 1_000_000
_WRITE_TOKENS = 2**23
_GAP_BYTES = 2**20  # a spill is read in blocks of this, so a smaller gap costs nothing to read over

SAMPLE_DTYPE = np.dtype(
    [
        ("sample_key", "<u8"),
        ("content_high", "<u8"),
        ("content_low", "<u8"),
        ("input_index", "<u4"),
        ("row", "<u8"),
        ("start", "<u8"),
        ("num_tokens", "<u4"),
    ]
)


@dataclass(frozen=True)
class ShuffleJob:
    """One shard to make. `info` is the JSON block of its header; `num_samples` documents are chosen for the check."""

    store: str
    version: str
    position: int  # in the assignment's shards
    deduplicate: bool
    vocab_size: int
    eot_id: int
    info: dict[str, Any]
    num_samples: int


@dataclass(frozen=True)
class _Piece:
    """The documents of a key range, sorted, without duplicates: n rows of TABLE_DTYPE and their spills' positions."""

    rows: NDArray[Any]
    spill: NDArray[np.uint32]
    num_duplicates: int
    duplicate_tokens: int


def shuffle_shard(job: ShuffleJob) -> dict[str, Any]:
    """Make one shard and its document table; return its record, at once if it is there already.

    The record: the manifest's fields of a shard, and "split", "duplicates", "duplicate_tokens", "max_id",
    "bad_ends" (documents whose last id is not end-of-text), "sampled" (rows of SAMPLE_DTYPE).

    Raises:
        WorkError: a spill is missing or damaged; its partition must be encoded again.
        StoreError: the shard can't be written.
    """
    store = Store(job.store)
    assignment = read_assignment(store, job.version)
    shard = assignment.shards[job.position]
    if record := read_shard_record(store, job.version, shard.name):
        return record
    progress.report(progress.Working(f"writing shard {shard.name}"))
    record = _write_shard(store, job, assignment, shard)
    store.replace(record_path(job.version, shard.name), canonical_json(record), durable=False)
    return record


def record_path(version: str, name: str) -> str:
    """Return the path of the record of shard `name` ("train/000000") of a version that is being built."""
    return candidate_path(version, name.replace("/", "-") + ".json")


def read_shard_record(store: Store, version: str, name: str) -> dict[str, Any] | None:
    """Return the record of a shard if its two files are there, else None."""
    try:
        record: dict[str, Any] = json.loads(store.read(record_path(version, name)))
    except (FileNotFoundError, ValueError):
        return None
    path = version_path(version, name)
    same = store.num_bytes(f"{path}.tok") == record["bytes"] and store.exists(f"{path}.docs")
    return record if same else None


def _write_shard(store: Store, job: ShuffleJob, assignment: Assignment, shard: ShardRange) -> dict[str, Any]:
    path = version_path(job.version, shard.name)
    measured = _Measured(job)
    with ExitStack() as stack:
        token_file = stack.enter_context(store.writing(f"{path}.tok"))
        table_file = stack.enter_context(store.writing(f"{path}.docs"))
        tokens = stack.enter_context(ShardWriter(token_file, job.vocab_size, job.info))
        table = stack.enter_context(DocumentTableWriter(table_file))
        for start_key, end_key in _pieces(shard, job.vocab_size):
            piece = _merge(store, assignment.spills, shard.split_index, start_key, end_key, job.deduplicate)
            measured.add_piece(piece, assignment.spills, table)
            for part, num_tokens in _gather(store, assignment.spills, piece, token_dtype(job.vocab_size)):
                measured.add_tokens(part, num_tokens)
                tokens.append(part, num_tokens)
                progress.report(progress.Advanced(part.nbytes, len(part)))
    return {
        "name": shard.name,
        "split": shard.split,
        "docs_sha256": table.sha256,
        **tokens.record,
        **measured.record(),
    }


def _pieces(shard: ShardRange, vocab_size: int) -> list[tuple[int, int]]:
    token_bytes = shard.tokens * token_dtype(vocab_size).itemsize
    count = max(1, -(-token_bytes // _PIECE_TOKEN_BYTES), -(-shard.documents // _PIECE_DOCUMENTS))
    return [equal_part(i, count, shard.start_key, shard.end_key) for i in range(count)]


def _merge(
    store: Store, spills: list[SpillEntry], split_index: int, start_key: int, end_key: int, deduplicate: bool
) -> _Piece:
    """Read the documents of a key range from all spills, in the total order (key, content, source, path, row)."""
    tables = [np.empty(0, TABLE_DTYPE)]
    for entry in spills:
        with Spill(store, entry.name, entry.index) as spill:
            tables.append(spill.documents(split_index, start_key, end_key))
    lengths = [len(table) for table in tables[1:]]
    rows = np.concatenate(tables)
    del tables
    spill_position = np.repeat(np.arange(len(spills), dtype=np.uint32), lengths)
    order = _total_order(rows, spill_position)
    rows, spill_position = rows[order], spill_position[order]
    if not deduplicate:
        return _Piece(rows, spill_position, 0, 0)
    repeated = np.zeros(len(rows), dtype=bool)
    high, low = rows["content_high"], rows["content_low"]
    repeated[1:] = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
    duplicate_tokens = int(rows["num_tokens"][repeated].sum(dtype=np.uint64))
    return _Piece(rows[~repeated], spill_position[~repeated], int(repeated.sum()), duplicate_tokens)


def _total_order(rows: NDArray[Any], spill_position: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return the order (key, content, input, row); spills come in the order of inputs and of their rows.

    A stable sort by key does nearly all; only where keys are equal do the other columns count.
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
    within = np.lexsort((part["row"], spill_position[subset], part["content_low"], part["content_high"], part["key"]))
    order[tied] = subset[within]
    return order


@dataclass(frozen=True)
class _Run:
    """Neighbouring documents of one spill, read at once: tokens [start, end) of it.

    `members` (n,) are positions in the piece; `lengths` (2n,) alternate: the gap before a document (often of no
    tokens), then the document.
    """

    entry: SpillEntry
    start: int
    end: int
    members: NDArray[np.int64]
    lengths: NDArray[np.int64]


def _plan_runs(spills: list[SpillEntry], piece: _Piece, token_bytes: int) -> Iterator[_Run]:
    """Yield the reads that bring the tokens of a piece, spill by spill; gaps above _GAP_BYTES are not read."""
    by_place = np.lexsort((piece.rows["start"], piece.spill))
    starts = piece.rows["start"][by_place].astype(np.int64)
    ends = starts + piece.rows["num_tokens"][by_place]
    gaps = starts[1:] - ends[:-1]
    is_cut = (np.diff(piece.spill[by_place]) != 0) | (gaps * token_bytes > _GAP_BYTES)
    bounds = [0, *(np.flatnonzero(is_cut) + 1).tolist(), len(by_place)]
    for first, last in pairwise(bounds):
        lengths = np.zeros(2 * (last - first), np.int64)
        lengths[2::2] = gaps[first : last - 1]
        lengths[1::2] = ends[first:last] - starts[first:last]
        entry = spills[piece.spill[by_place[first]]]
        yield _Run(entry, int(starts[first]), int(ends[last - 1]), by_place[first:last], lengths)


def _gather(
    store: Store, spills: list[SpillEntry], piece: _Piece, dtype: np.dtype[Any]
) -> Iterator[tuple[NDArray[Any], NDArray[np.uint32]]]:
    """Yield (tokens, num_tokens) of the piece's documents in order, about _WRITE_TOKENS at a time."""
    if not len(piece.rows):
        return
    runs = list(_plan_runs(spills, piece, dtype.itemsize))
    source = np.empty(sum(run.end - run.start for run in runs), dtype)
    element = np.empty(len(piece.rows), np.int64)  # of each document among the gaps and documents in source
    filled = num_elements = 0
    for run in runs:
        with Spill(store, run.entry.name, run.entry.index) as spill:
            source[filled : filled + run.end - run.start] = spill.tokens(run.start, run.end)
        element[run.members] = num_elements + 1 + 2 * np.arange(len(run.members))
        filled, num_elements = filled + run.end - run.start, num_elements + len(run.lengths)
    lengths = np.concatenate([run.lengths for run in runs])
    num_tokens = piece.rows["num_tokens"]
    for start, end in _cut_by_tokens(num_tokens, _WRITE_TOKENS):
        yield take_documents(source, lengths, element[start:end]), num_tokens[start:end]


def _cut_by_tokens(num_tokens: NDArray[np.uint32], most: int) -> Iterator[tuple[int, int]]:
    """Yield runs [start, end) of documents of about `most` tokens; a longer document is a run of its own."""
    ends = np.cumsum(num_tokens, dtype=np.int64)
    start = 0
    while start < len(ends):
        base = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, base + most, side="right")))
        yield start, end
        start = end


class _Measured:
    """What is seen while a shard is written, for the check before publishing."""

    def __init__(self, job: ShuffleJob) -> None:
        self._job = job
        self._duplicates = self._duplicate_tokens = self._bad_ends = 0
        self._max_id = -1
        self._num_tokens = 0
        self._keys: list[int] = []
        self._samples = np.empty(0, SAMPLE_DTYPE)

    def add_piece(self, piece: _Piece, spills: list[SpillEntry], table: DocumentTableWriter) -> None:
        """Count a piece, write its rows into the document table, keep the documents chosen for the check."""
        rows = piece.rows
        self._duplicates += piece.num_duplicates
        self._duplicate_tokens += piece.duplicate_tokens
        if not len(rows):
            return
        inputs = np.array([entry.input_index for entry in spills], dtype=np.uint32)[piece.spill]
        content = np.stack([rows["content_high"], rows["content_low"]], axis=1)
        table.append(rows["num_tokens"], inputs, rows["row"], content, rows["key"])
        self._keys = [*self._keys[:1], int(rows["key"][0]), int(rows["key"][-1])]
        self._choose(rows, inputs, content)

    def _choose(self, rows: NDArray[Any], inputs: NDArray[np.uint32], content: NDArray[np.uint64]) -> None:
        keys = sample_keys(content)
        count = min(self._job.num_samples, len(keys))
        chosen = np.argpartition(keys, count - 1)[:count]
        samples = np.empty(count, SAMPLE_DTYPE)
        samples["sample_key"] = keys[chosen]
        samples["input_index"] = inputs[chosen]
        samples["start"] = (
            self._num_tokens + (np.cumsum(rows["num_tokens"], dtype=np.uint64) - rows["num_tokens"])[chosen]
        )
        for name in ("content_high", "content_low", "row", "num_tokens"):
            samples[name] = rows[name][chosen]
        both = np.concatenate([self._samples, samples])
        self._samples = both[np.argsort(both["sample_key"], kind="stable")][: self._job.num_samples]

    def add_tokens(self, tokens: NDArray[Any], num_tokens: NDArray[np.uint32]) -> None:
        """Look at the ids of whole documents: the largest, and whether each ends with end-of-text."""
        last = np.cumsum(num_tokens, dtype=np.int64) - 1
        self._max_id = max(self._max_id, int(tokens.max(initial=0)))
        self._bad_ends += int((tokens[last] != self._job.eot_id).sum())
        self._num_tokens += len(tokens)

    def record(self) -> dict[str, Any]:
        """Return the measured part of the shard's record."""
        keys: list[str | None] = [f"{key:016x}" for key in self._keys]
        return {
            "first_key": keys[0] if keys else None,
            "last_key": keys[-1] if keys else None,
            "duplicates": self._duplicates,
            "duplicate_tokens": self._duplicate_tokens,
            "max_id": self._max_id,
            "bad_ends": self._bad_ends,
            "sampled": self._samples.tolist(),
        }
