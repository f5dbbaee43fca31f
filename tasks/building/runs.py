"""Runs: the documents of neighbouring spills merged into one order, where a build has more than a shard may read.

A run is made in parts of its key range, files in the format of spills that the shuffle reads in place of these. They
are named by all that decides their bytes, so another build finds them, and a damaged one is made alone. Documents that
marks drop are left out, and so are duplicates of a document in the same part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from tokenloom.storage.formats.arrays import token_dtype
from tokenloom.storage.formats.keys import equal_part
from tokenloom.storage.formats.records import sha256_of
from tokenloom.storage.formats.statistics import added
from tokenloom.storage.work.records import (
    Assignment,
    RunPart,
    RunPartRecord,
    SpillCounts,
    SpillEntry,
    find_run_parts,
    partition_record_path,
    write_assignment,
    write_work_record,
)
from tokenloom.storage.work.spill import SPILL_FORMAT, SpillDocuments, write_spill
from tokenloom.tasks.building.merge import gather_tokens, merge_documents, work_of
from tokenloom.tasks.building.plan import Build
from tokenloom.tasks.running import progress
from tokenloom.tasks.sizes import num_pieces, runs_of
from tokenloom.tokenizers.base import text_bytes


def cut_runs(build: Build, spills: Sequence[SpillEntry], counts: Sequence[SpillCounts]) -> list[RunPart]:
    """Return the parts of the runs of all spills, whose counts are in the same order; none if there are few spills."""
    parts: list[RunPart] = []
    for first, end in runs_of(len(spills)):
        ranges = list(_ranges(build, counts[first:end]))
        of = [[spill.name, spill.index, spill.checksum, spill.marked] for spill in spills[first:end]]
        name = sha256_of([SPILL_FORMAT, build.has_classes, ranges, of])[:32]
        parts += [RunPart(f"{name}-{index}", *each, first, end) for index, each in enumerate(ranges)]
    return parts


def _ranges(build: Build, counts: Sequence[SpillCounts]) -> Iterator[tuple[int, int, int]]:
    """Yield (split index, start key, end key) of the parts of a run, from the counts of its spills."""
    documents, tokens = added((of.documents for of in counts), []), added((of.tokens for of in counts), [])
    for split, num_documents in enumerate(documents):
        num_bytes = sum(of.bytes for of in counts) * tokens[split] // max(1, sum(tokens))
        count = num_pieces(num_bytes, num_documents, len(counts), build.has_ids, build.memory)
        yield from ((split, *equal_part(i, count)) for i in range(count))


def merge_part(build: Build, token: str, position: int) -> None:
    """Make the part of a run at a position of the assignment that `token` names, then its record.

    Raises:
        WorkError: a spill is missing or damaged; its partition must be encoded again.
        StoreError: the part can't be written.
    """
    work = work_of(str(build.store.root), build.version, token)
    part = work.assignment.parts[position]
    spills, is_copy = work.assignment.spills[part.first : part.end], work.spills["is_copy"][part.first : part.end]
    progress.report(progress.Working(f"merging spills {part.first:,} to {part.end:,}"))
    piece = merge_documents(build, spills, is_copy, part.split_index, (part.start_key, part.end_key))
    rows, gathered = piece.rows, list(gather_tokens(build, spills, piece))
    ids = pa.array([""] * len(rows)) if piece.ids is None else piece.ids.fill_null("")
    id_bytes, offsets = text_bytes(ids.cast(pa.large_string()))
    empty = np.empty(0, np.uint8)
    documents = SpillDocuments(
        split=np.full(len(rows), part.split_index, np.uint8),
        key=rows["key"],
        content=np.stack([rows["content_high"], rows["content_low"]], axis=1),
        row=rows["row"],
        num_tokens=rows["num_tokens"],
        tokens=np.concatenate([empty.astype(token_dtype(build.tokenizer.vocab_size)), *(each[0] for each in gathered)]),
        id_bytes=np.diff(offsets).astype(np.uint32),
        ids=id_bytes,
        classes=np.concatenate([empty, *(each[2] for each in gathered)]) if build.has_classes else None,
        member=piece.origin,
    )
    spill = write_spill(build.store, part.name, 0, documents, len(build.rules.shares), {})
    left = {name: count for name, count in piece.counts.items() if name != "copies"}
    write_work_record(build.store, partition_record_path(part.name), RunPartRecord(spill, left))
    progress.report(progress.Advanced(num_documents=len(rows), num_bytes=spill.bytes, done=1))


def with_runs(build: Build, assignment: Assignment) -> Assignment:
    """Return the assignment with the parts of runs that are there; if all are, it is written, and shards can be made.

    Of unfinished ones, each share of a build would write another.
    """
    parts = find_run_parts(build.store, assignment.parts)
    done = replace(assignment, parts=parts)
    return write_assignment(build.store, build.version, done) if all(part.checksum for part in parts) else done
