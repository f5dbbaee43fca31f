"""Shuffle: write one key range of a split as one shard.

A shard is made in pieces, each a part of its key range, so that memory does not grow with the shard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np

from tokenloom.storage.formats.arrays import UInt64s
from tokenloom.storage.formats.blocks import encode_blocks
from tokenloom.storage.formats.keys import equal_part
from tokenloom.storage.formats.manifest import BLOCKS, DOCS, MASK, SHARD, FileEntry
from tokenloom.storage.formats.records import sha256_of_bytes
from tokenloom.storage.formats.shard_writer import DocumentTableWriter, MaskWriter, ShardWriter
from tokenloom.storage.formats.statistics import DocumentCounter
from tokenloom.storage.stores import local_files
from tokenloom.storage.verification import is_as_listed
from tokenloom.storage.versions.published import version_path
from tokenloom.storage.work.records import (
    BUILDS,
    Assignment,
    RunPart,
    ShardRange,
    ShardRecord,
    find_work_records,
    read_assignment,
    shard_record_path,
    write_work_record,
)
from tokenloom.storage.work.spill import ROW_BITS
from tokenloom.tasks.building.merge import Gathered, gather_tokens, merge_documents
from tokenloom.tasks.building.plan import Build
from tokenloom.tasks.running import progress
from tokenloom.tasks.sizes import num_pieces


def shuffle_shard(build: Build, digest: str, position: int) -> None:
    """Make the shard at a position of the assignment, and its document table, unless an earlier process has.

    Its record is in the store then.

    Args:
        build: the build.
        digest: that of the assignment.
        position: the position of the shard there.

    Raises:
        WorkError: a spill is missing or damaged; its partition must be encoded again.
        StoreError: the shard can't be written.
    """
    assignment = read_assignment(str(build.store.root), build.version, digest)
    shard = assignment.shards[position]
    if record := _finished_shard(build, shard, assignment.encoders):
        progress.report(progress.Reused(1, record.tokens + record.left_tokens))
        return
    progress.report(progress.Working(f"writing shard {shard.name}"))
    record = _write_shard(build, assignment, shard)
    write_work_record(build.store, shard_record_path(build.version, shard.name), record)  # last: its files are there


def num_unmade(build: Build, assignment: Assignment) -> int:
    """Return how many shards of the assignment have no record yet."""
    made = {f"{BUILDS}/{build.version}/{name}" for name in build.store.names(f"{BUILDS}/{build.version}")}
    return sum(shard_record_path(build.version, shard.name) not in made for shard in assignment.shards)


def _finished_shard(build: Build, shard: ShardRange, encoders: Collection[str]) -> ShardRecord | None:
    """Return the record of a shard that an earlier process made, if its files are undamaged.

    A shard that may hold ids of other fast encoders than `encoders` does not count.
    """
    path = shard_record_path(build.version, shard.name)
    record = find_work_records(build.store, [path], ShardRecord).get(path)
    if record is None or not set(record.encoders).issubset(encoders):
        return None
    progress.report(progress.Working(f"verifying shard {shard.name}"))
    if is_as_listed(build.store, build.version, record):
        return record
    place = build.store.place(version_path(build.version, shard.name))
    progress.report(progress.Message(f"{place}: its files were damaged after they were written; writing them again"))
    return None


def _write_shard(build: Build, assignment: Assignment, shard: ShardRange) -> ShardRecord:
    store, path = build.store, version_path(build.version, shard.name)
    counts, keys = Counter(max_id=-1), list[str]()  # the first and the last key
    inputs = np.array([spill.input_index for spill in assignment.spills], np.uint32)  # (n,) for n spills
    sources = np.array([spill.source_index for spill in assignment.spills], np.intp)
    is_copy = np.array([spill.is_copy for spill in assignment.spills])
    for run in assignment.files(shard.split_index, shard.start_key, shard.end_key):
        if isinstance(run, RunPart) and run.start_key >= shard.start_key:  # what it lacks counts where it begins
            counts.update(run.dropped)
    progress.report(progress.Advanced(done=counts["left_tokens"]))
    documents = DocumentCounter(assignment.sources)
    with ExitStack() as stack:
        token_file = stack.enter_context(store.writing(path + SHARD))
        table_file = stack.enter_context(store.writing(path + DOCS))
        mask_file = stack.enter_context(store.writing(path + MASK)) if build.has_classes else None
        start_sync = stack.enter_context(local_files.syncing(token_file)) if store.is_local else None
        tokens = ShardWriter(token_file, build.tokenizer.vocab_size, _info(build, shard))
        table = DocumentTableWriter(table_file, build.has_ids, build.has_classes)
        mask = MaskWriter(mask_file) if mask_file else None
        for key_range in _pieces(build, assignment, shard):
            merged = assignment.files(shard.split_index, *key_range)
            piece = merge_documents(build, merged, is_copy, shard.split_index, key_range)
            counts.update(piece.counts)
            progress.report(progress.Advanced(done=piece.counts["left_tokens"]))
            hashes = _append(gather_tokens(build, merged, piece), build.tokenizer.eot_id, tokens, mask, counts)
            if len(rows := piece.rows):
                keys = [*keys[:1], *(f"{key:016x}" for key in rows["key"][[0, -1]])]
                documents.add(rows["num_tokens"], sources[piece.spill_index])
                content = np.stack([rows["content_high"], rows["content_low"]], axis=1)
                origin = inputs[piece.spill_index], rows["row"] % 2**ROW_BITS
                table.append(rows["num_tokens"], *origin, content, rows["key"], piece.ids, hashes)
            if start_sync:
                start_sync()  # it writes to the device while the next piece is merged
        header, checksums = tokens.finish()
        files = {DOCS: table.finish()}
        if mask:
            checksums = replace(checksums, mask=(of_mask := mask.finish()))
            files[MASK] = FileEntry(bytes=of_mask.num_bytes, sha256=of_mask.sha256)
    blocks = encode_blocks(checksums)
    store.replace(path + BLOCKS, blocks)
    files[BLOCKS] = FileEntry(bytes=len(blocks), sha256=sha256_of_bytes(blocks))
    return ShardRecord(
        name=shard.name + SHARD,
        bytes=checksums.num_bytes,
        tokens=header.num_tokens,
        documents=header.num_documents,
        sha256=checksums.sha256,
        files=files,
        first_key=keys[0] if keys else None,
        last_key=keys[-1] if keys else None,
        **{name: counts[name] for name in ("duplicates", "copies", "left_copies", "left_tokens", "max_id", "bad_ends")},
        encoders=tuple(assignment.encoders),
        statistics=documents.statistics(mask.counts() if mask else {}),
    )


def _append(
    gathered: Iterator[Gathered], eot_id: int, tokens: ShardWriter, mask: MaskWriter | None, counts: Counter[str]
) -> UInt64s | None:
    """Append documents to a shard, and count them; return the hashes of their classes, (n,), None without a mask."""
    hashes = [np.empty(0, np.uint64)]
    for part, num_tokens, classes in gathered:
        last = part[np.cumsum(num_tokens, dtype=np.int64) - 1]
        counts["max_id"] = max(counts["max_id"], int(part.max(initial=0)))
        counts["bad_ends"] += int((last != eot_id).sum())
        tokens.append(part, num_tokens)
        if mask and classes is not None:
            hashes.append(mask.append(classes, num_tokens))
        size = {"num_documents": len(num_tokens), "num_tokens": len(part)}
        progress.report(progress.Advanced(num_bytes=part.nbytes, done=len(part), **size))
    return np.concatenate(hashes) if mask else None


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


def _pieces(build: Build, assignment: Assignment, shard: ShardRange) -> list[tuple[int, int]]:
    """Return the key ranges of the pieces of a shard; their number is that of all bytes, so dropped ones count too."""
    num_files = len(assignment.files(shard.split_index, shard.start_key, shard.start_key + 1))
    of_all = sum(file.num_bytes for file in assignment.parts or assignment.spills)
    num_bytes = shard.num_tokens * of_all // max(1, sum(each.num_tokens for each in assignment.shards))
    count = num_pieces(num_bytes, shard.num_documents, num_files, build.has_ids, build.memory)
    return [equal_part(i, count, shard.start_key, shard.end_key) for i in range(count)]
