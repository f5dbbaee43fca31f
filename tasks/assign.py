"""Assign: count what the spills hold and divide the key range of each split into shards."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from tokenloom.errors import InputError, WorkError
from tokenloom.storage.canonical import canonical_json
from tokenloom.storage.filesystem import Store
from tokenloom.storage.keys import equal_part
from tokenloom.tasks.plan import BuildPlan
from tokenloom.tasks.tokenization import read_record


@dataclass(frozen=True)
class SpillEntry:
    """One spill to read, in the total order of inputs: partition name, index in it, index into the inputs."""

    name: str
    index: int
    input_index: int


@dataclass(frozen=True)
class ShardRange:
    """The part of a split's key range [start_key, end_key) that one shard takes.

    `tokens` and `documents` are what the part should hold before duplicates are dropped, for bounding memory.
    """

    split: str
    split_index: int
    shard_index: int
    start_key: int
    end_key: int
    tokens: int
    documents: int

    @property
    def name(self) -> str:
        """The path of the shard in its version, without suffix."""
        return f"{self.split}/{self.shard_index:06d}"


@dataclass(frozen=True)
class Assignment:
    """What the shuffle reads and writes.

    `totals` counts, before duplicates are dropped: {split: {"documents", "tokens"}}; `rows`: {"read", "filtered"}.
    """

    spills: list[SpillEntry]
    shards: list[ShardRange]
    totals: dict[str, dict[str, int]]
    rows: dict[str, int]


def candidate_path(version: str, name: str) -> str:
    """Return the path of the work file `name` of a version that is not published yet."""
    return f"work/candidates/{version}/{name}"


def assign_shards(plan: BuildPlan) -> Assignment:
    """Divide the key range, and write the assignment where the shuffle finds it.

    Raises:
        WorkError: a partition has no spills (work/ was deleted while the build ran).
        InputError: the inputs hold no document at all.
    """
    shares = plan.spec.split_shares()
    totals = {name: {"documents": 0, "tokens": 0} for name, _ in shares}
    rows = {"read": 0, "filtered": 0}
    spills = []
    for partition in plan.partitions:
        record = read_record(plan.store, partition.spill)
        if record is None:
            raise WorkError(f"{plan.store.root}: the spills {partition.spill} are gone", partition.spill)
        rows = {name: rows[name] + record[name] for name in rows}
        for index, spill in enumerate(record["spills"]):
            spills.append(SpillEntry(partition.spill, index, partition.input_index))
            for i, (name, _) in enumerate(shares):
                totals[name]["documents"] += spill["documents"][i]
                totals[name]["tokens"] += spill["tokens"][i]
    if not spills:
        raise InputError(_no_documents(plan, rows))
    shards = [
        shard
        for i, (name, _) in enumerate(shares)
        for shard in cut_split(name, i, totals[name], plan.spec.shard_tokens)
    ]
    assignment = Assignment(spills, shards, totals, rows)
    path = candidate_path(plan.version, "assignment.json")
    plan.store.replace(path, canonical_json(asdict(assignment)), durable=False)
    return assignment


def cut_split(split: str, split_index: int, totals: dict[str, int], shard_tokens: int) -> list[ShardRange]:
    """Return the shards of a split: max(1, round(tokens / shard_tokens)) equal parts of the key range."""
    count = max(1, (2 * totals["tokens"] + shard_tokens) // (2 * shard_tokens))
    parts = [equal_part(i, count) for i in range(count)]
    return [
        ShardRange(split, split_index, i, start, end, totals["tokens"] // count, totals["documents"] // count)
        for i, (start, end) in enumerate(parts)
    ]


def read_assignment(store: Store, version: str) -> Assignment:
    """Return the assignment of a version that is being built; raises WorkError if it is gone with work/."""
    path = candidate_path(version, "assignment.json")
    try:
        value: dict[str, Any] = json.loads(store.read(path))
    except FileNotFoundError as error:
        raise WorkError(f"{store.local(path)}: it is missing; it is made again") from error
    return Assignment(
        spills=[SpillEntry(**item) for item in value["spills"]],
        shards=[ShardRange(**item) for item in value["shards"]],
        totals=value["totals"],
        rows=value["rows"],
    )


def _no_documents(plan: BuildPlan, rows: dict[str, int]) -> str:
    files = f"{len(plan.inputs)} file" + ("s" if len(plan.inputs) > 1 else "")
    return (
        f"{plan.inputs[0].url}: no document in {files}: {rows['read']} rows read, {rows['filtered']} of them empty or "
        f"shorter than documents.min_chars ({plan.spec.documents.min_chars}); check the source and the rules"
    )
