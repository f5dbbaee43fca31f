"""Assign: count what the spills hold and divide the key range of each split into shards."""

from __future__ import annotations

from tokenloom.errors import WorkError
from tokenloom.storage.formats.keys import equal_part
from tokenloom.storage.versions.assignment import Assignment, ShardRange, SpillEntry, write_assignment
from tokenloom.tasks.messages.no_documents import check_documents_found
from tokenloom.tasks.plan import BuildPlan
from tokenloom.tasks.records import read_records
from tokenloom.tasks.rows.exclusion import write_exclusions


def assign_shards(plan: BuildPlan) -> Assignment:
    """Divide the key range, and write the assignment where the shuffle finds it.

    Raises:
        WorkError: a partition has no spills (work/ was deleted while the build ran).
        InputError: the inputs hold no document at all.
    """
    shares = plan.spec.split_shares()
    totals = {name: {"documents": 0, "tokens": 0} for name, _ in shares}
    rows = {"read": 0, "filtered": 0, "not_read": 0, "quarantined": 0}
    spills = []
    found = read_records(plan.store, (partition.spill for partition in plan.partitions))
    for partition in plan.partitions:
        record = found.get(partition.spill)
        if record is None:
            raise WorkError(f"{plan.store.root}: the spills {partition.spill} are gone", partition.spill)
        counts = record | {"quarantined": record["quarantine"]["rows"]}
        rows = {name: rows[name] + counts[name] for name in rows}
        for index, spill in enumerate(record["spills"]):
            spills.append(SpillEntry(partition.spill, index, spill["bytes"], partition.input_index))
            for i, (name, _) in enumerate(shares):
                totals[name]["documents"] += spill["documents"][i]
                totals[name]["tokens"] += spill["tokens"][i]
    check_documents_found(plan, found)
    shards = [
        shard
        for i, (name, _) in enumerate(shares)
        for shard in cut_split(name, i, totals[name], plan.spec.shard_tokens)
    ]
    assignment = Assignment(spills, shards, totals, rows)
    write_assignment(plan.store, plan.version, assignment)
    if plan.excluded is not None:
        write_exclusions(plan.store, plan.version, plan.excluded)
    return assignment


def cut_split(split: str, split_index: int, totals: dict[str, int], shard_tokens: int) -> list[ShardRange]:
    """Return the shards of a split: max(1, round(tokens / shard_tokens)) equal parts of the key range."""
    num_shards = max(1, (2 * totals["tokens"] + shard_tokens) // (2 * shard_tokens))
    parts = [equal_part(i, num_shards) for i in range(num_shards)]
    num_tokens, num_documents = totals["tokens"] // num_shards, totals["documents"] // num_shards
    return [
        ShardRange(split, split_index, i, start, end, num_tokens, num_documents) for i, (start, end) in enumerate(parts)
    ]
