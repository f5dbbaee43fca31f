"""Assign: count what the spills hold and divide the key range of each split into shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tokenloom.storage.formats.keys import equal_part
from tokenloom.storage.formats.statistics import DocumentCounts, EncodedCounts, add_chats
from tokenloom.storage.formats.version_files import EncoderUse
from tokenloom.storage.work.assignment import (
    Assignment,
    RowsRead,
    ShardRange,
    SpillEntry,
    write_assignment,
)
from tokenloom.storage.work.partition_records import (
    PartitionRecord,
    find_partition_records,
    partition_record_path,
)
from tokenloom.storage.work.work_files import damaged
from tokenloom.tasks.planning.plan import BuildPlan
from tokenloom.tasks.rows.exclusion import write_exclusions
from tokenloom.tasks.shuffling.documents_found import check_documents_found


def assign_shards(plan: BuildPlan) -> Assignment:
    """Divide the key range, and write the assignment where the shuffle finds it.

    Raises:
        WorkError: a partition has no spills (work/ was deleted while the build ran).
        InputError: the inputs hold no document at all.
    """
    shares, sources = plan.spec.split_shares(), plan.spec.source_names()
    found = find_partition_records(plan.store, (part.spill_name for part in plan.partitions))
    by_source: dict[str, list[PartitionRecord]] = {name: [] for name in sources}
    spills: list[SpillEntry] = []
    for part in plan.partitions:
        record, source = found.get(part.spill_name), part.file.source
        if record is None:
            raise damaged(plan.store, partition_record_path(part.spill_name))
        by_source[source].append(record)
        for index, spill in enumerate(record.spills):
            place = part.spill_name, index, spill.bytes, spill.checksum
            spills.append(SpillEntry(*place, part.input_index, sources.index(source)))
    check_documents_found(plan, found)
    records = [record for of_source in by_source.values() for record in of_source]
    counts = [spill for record in records for spill in record.spills]
    totals = {
        name: DocumentCounts(sum(spill.documents[i] for spill in counts), sum(spill.tokens[i] for spill in counts))
        for i, (name, _) in enumerate(shares)
    }
    shards = [
        shard
        for i, (name, _) in enumerate(shares)
        for shard in cut_split(name, i, totals[name], plan.spec.shard_tokens)
    ]
    rows = RowsRead(
        read=sum(record.read for record in records),
        filtered=sum(record.filtered for record in records),
        not_read=sum(record.not_read for record in records),
        quarantined=sum(record.quarantine.rows for record in records),
    )
    encoded = {name: _encoded_counts(of_source) for name, of_source in by_source.items()}
    assignment = Assignment(spills, shards, totals, rows, _encoders(records), sources, encoded)
    write_assignment(plan.store, plan.version, assignment)
    if plan.excluded is not None:
        write_exclusions(plan.store, plan.version, plan.excluded)
    return assignment


def _encoded_counts(records: Sequence[PartitionRecord]) -> EncodedCounts:
    spills = [spill for record in records for spill in record.spills]
    return EncodedCounts(
        documents=sum(sum(spill.documents) for spill in spills),
        tokens=sum(sum(spill.tokens) for spill in spills),
        bytes=sum(record.text_bytes for record in records),
        chat=add_chats(record.chat for record in records),
        rows=sum(record.read for record in records),
        filtered=sum(record.filtered for record in records),
    )


def _encoders(records: list[PartitionRecord]) -> dict[str, EncoderUse]:
    """Return what each fast encoder did."""
    partitions, compared = Counter[str](), Counter[str]()
    for record in records:
        if record.encoder:
            partitions[record.encoder] += 1
            compared[record.encoder] += record.compared
    return {name: EncoderUse(partitions[name], compared[name]) for name in sorted(partitions)}


def cut_split(split: str, split_index: int, totals: DocumentCounts, shard_tokens: int) -> list[ShardRange]:
    """Return the shards of a split: max(1, round(tokens / shard_tokens)) equal parts of the key range."""
    num_shards = max(1, (2 * totals.tokens + shard_tokens) // (2 * shard_tokens))
    parts = [equal_part(i, num_shards) for i in range(num_shards)]
    num_tokens, num_documents = totals.tokens // num_shards, totals.documents // num_shards
    return [
        ShardRange(split, split_index, i, start, end, num_tokens, num_documents) for i, (start, end) in enumerate(parts)
    ]
