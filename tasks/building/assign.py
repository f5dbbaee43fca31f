"""Assign: check the records of the partitions, and divide the key range of each split into shards.

If there are more spills than a shard may read, neighbouring ones are divided into runs too, whose documents are merged
first. A run is made in parts of its key range, files in the format of spills that the shuffle reads in place of these.
They are named by all that decides their bytes, so another build finds them, and a damaged one is made alone. Documents
that marks drop are left out, and so are duplicates of a document in the same part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tokenloom.errors import InputError
from tokenloom.spec.syntax import columns_of, parse_filter
from tokenloom.storage.formats.keys import equal_part
from tokenloom.storage.formats.records import sha256_of
from tokenloom.storage.formats.statistics import DocumentCounts, EncodedCounts, MarkCounts, added
from tokenloom.storage.versions.build_record import EncoderUse
from tokenloom.storage.work.marked import find_marked
from tokenloom.storage.work.records import (
    Assignment,
    PartitionRecord,
    RunPart,
    ShardRange,
    SpillCounts,
    SpillEntry,
    damaged,
    find_partition_records,
    find_run_parts,
    partition_record_path,
    write_assignment,
)
from tokenloom.storage.work.spill import ROW_BITS, SPILL_FORMAT
from tokenloom.tasks.building.plan import Build, BuildPlan, partitions_by_source
from tokenloom.tasks.sizes import num_pieces, runs_of
from tokenloom.tasks.sources.reader import naming_source, with_line
from tokenloom.wording import NO_TURN_HINT, counted


def assign_shards(plan: BuildPlan) -> Assignment:
    """Divide the key range, and write the assignment where the shuffle finds it.

    Raises:
        WorkError: a partition has no spills (work/ was deleted while the build ran).
        InputError: the inputs hold no document at all.
    """
    store, version = plan.build.store, plan.build.version
    shares, sources = plan.spec.split_shares(), plan.spec.source_names()
    found = find_partition_records(store, (part.spill_name for part in plan.partitions))
    by_source: dict[str, list[PartitionRecord]] = {name: [] for name in sources}
    spills: list[SpillEntry] = []
    counts: list[SpillCounts] = []  # one for each spill
    for part in plan.partitions:
        record, source = found.get(part.spill_name), part.file.source
        if record is None:
            raise damaged(store, partition_record_path(part.spill_name))
        by_source[source].append(record)
        origin = part.input_index, sources.index(source)
        marked = plan.build.marks.name(part.spill_name, record, part.file) if plan.build.marks else ""
        counts += record.spills
        for index, spill in enumerate(record.spills):
            spills.append(SpillEntry(part.spill_name, index, spill.bytes, spill.checksum, *origin, marked))
    check_documents_found(plan, found)
    records = [record for of_source in by_source.values() for record in of_source]
    documents = added((spill.documents for record in records for spill in record.spills), [])
    tokens = added((spill.tokens for record in records for spill in record.spills), [])
    totals = {name: DocumentCounts(documents[i], tokens[i]) for i, (name, _) in enumerate(shares)}
    cut, marks = totals, dict[str, MarkCounts]()
    if plan.build.marks:
        marks = _take_marks(plan, spills, counts)
        left = added((of_source.splits for of_source in marks.values()), totals)
        totals = {split: left[split] for split in totals}
        cut = totals if plan.spec.documents.marks else cut  # exclusions alone never moved a bound
    assignment = Assignment(
        spills=spills,
        shards=[
            shard
            for i, (name, total) in enumerate(cut.items())
            for shard in cut_split(name, i, total, plan.spec.shard_tokens)
        ],
        totals=totals,
        not_read=sum(record.not_read for record in records),
        quarantined=sum(record.quarantine.rows for record in records),
        encoders=added(({name: EncoderUse(1, r.compared)} for r in records if (name := r.encoder)), {}),
        sources=sources,
        encoded={name: added((r.encoded for r in each), EncodedCounts(0, 0, 0)) for name, each in by_source.items()},
        marks=marks,
        parts=cut_runs(plan.build, spills, counts),
    )
    return write_assignment(store, version, assignment)


def _take_marks(plan: BuildPlan, spills: list[SpillEntry], counts: list[SpillCounts]) -> dict[str, MarkCounts]:
    """Add the spills of further copies, and their counts; return what marks make of the documents of each source."""
    store, names = plan.build.store, {entry.marked: entry for entry in spills}
    marked = find_marked(store, list(names))
    found: dict[str, list[MarkCounts]] = {}
    for name, entry in names.items():
        if name not in marked:
            raise damaged(store, partition_record_path(name))
        found.setdefault(plan.spec.source_names()[entry.source_index], []).append(marked[name].counts)
        counts += marked[name].spills
        for index, spill in enumerate(marked[name].spills):
            copies = replace(entry, name=name, index=index, num_bytes=spill.bytes, checksum=spill.checksum)
            spills.append(replace(copies, marked="", is_copy=True))
    return {source: added(each, each[0]) for source, each in found.items()}


def cut_split(split: str, split_index: int, totals: DocumentCounts, shard_tokens: int) -> list[ShardRange]:
    """Return the shards of a split: max(1, round(tokens / shard_tokens)) equal parts of the key range."""
    num_shards = max(1, (2 * totals.tokens + shard_tokens) // (2 * shard_tokens))
    parts = [equal_part(i, num_shards) for i in range(num_shards)]
    num_tokens, num_documents = totals.tokens // num_shards, totals.documents // num_shards
    return [
        ShardRange(split, split_index, i, start, end, num_tokens, num_documents) for i, (start, end) in enumerate(parts)
    ]


def cut_runs(build: Build, spills: Sequence[SpillEntry], counts: Sequence[SpillCounts]) -> list[RunPart]:
    """Return the parts of the runs of all spills, whose counts are in the same order; none if there are few spills."""
    parts: list[RunPart] = []
    for first, end in runs_of(len(spills)):
        ranges = list(_ranges(build, counts[first:end]))
        of = [[spill.name, spill.index, spill.checksum, spill.marked] for spill in spills[first:end]]
        name = sha256_of([SPILL_FORMAT, ROW_BITS, build.has_classes, ranges, of])[:32]
        parts += [RunPart(f"{name}-{index}", *each, first, end) for index, each in enumerate(ranges)]
    return parts


def _ranges(build: Build, counts: Sequence[SpillCounts]) -> Iterator[tuple[int, int, int]]:
    """Yield (split index, start key, end key) of the parts of a run, from the counts of its spills."""
    documents, tokens = added((of.documents for of in counts), []), added((of.tokens for of in counts), [])
    for split, num_documents in enumerate(documents):
        num_bytes = sum(of.bytes for of in counts) * tokens[split] // max(1, sum(tokens))
        count = num_pieces(num_bytes, num_documents, len(counts), build.has_ids, build.memory)
        yield from ((split, *equal_part(i, count)) for i in range(count))


def with_runs(build: Build, assignment: Assignment) -> Assignment:
    """Return the assignment with the parts of runs that are there; if all are, it is written, and shards can be made.

    Of unfinished ones, each share of a build would write another.
    """
    done = replace(assignment, parts=find_run_parts(build.store, assignment.parts))
    return write_assignment(build.store, build.version, done) if all(part.is_made for part in done.parts) else done


def check_documents_found(plan: BuildPlan, records: Mapping[str, PartitionRecord]) -> None:
    """Raise InputError if the sources of a build hold no document, or if no row has a key that they name.

    Args:
        plan: with its partitions.
        records: the records of partitions, by the name of their spills, see PartitionRecord. A source is checked only
            if all of its partitions have one.

    Raises:
        InputError: names the missing key or document, and its source.
    """
    by_source = partitions_by_source(plan)
    for parts in by_source:
        if all(part.spill_name in records for part in parts):
            file = plan.inputs[parts[0].input_index]
            with naming_source(file.source):
                _check_source(file.source, file.options.get("filter"), [records[part.spill_name] for part in parts])
    if all(part.spill_name in records for part in plan.partitions):
        found = [records[part.spill_name] for part in plan.partitions]
        if not any(record.spills for record in found):
            raise InputError(_no_documents(plan, found))


def _check_source(source: str, filter_text: str | None, records: Sequence[PartitionRecord]) -> None:
    """Raise InputError if a source has only bad rows, or if no row has a key that it names."""
    if keys := _missing_keys(filter_text, records):
        raise InputError(
            f"source {source}: no row has the key {keys[0]!r} that its filter, id or tools names; check the spelling"
        )
    lists = [record.quarantine for record in records if record.quarantine.rows]
    if lists and not any(record.spills for record in records):
        reasons = added((summary.reasons for summary in lists), {})
        listed = ", ".join(f"{count:,} {reason}" for reason, count in sorted(reasons.items()))
        num_bad = counted(sum(reasons.values()), "bad row")
        raise InputError(
            f"source {source}: no document, and {num_bad} ({listed}); check the source. The first of them: "
            f"{with_line(lists[0].first)}"
        )


def _missing_keys(filter_text: str | None, records: Sequence[PartitionRecord]) -> list[str]:
    """Return the keys that no row has, sorted."""
    unseen = [set(record.unseen) for record in records if record.encoded.rows]
    missing = set.intersection(*unseen) if unseen else set()
    if not any(record.spills for record in records):  # the id of a row that the filter leaves out is not read
        was_filtered = any(record.encoded.filtered for record in records)
        missing &= set(columns_of(parse_filter(filter_text))) if filter_text and was_filtered else set()
    return sorted(missing)


def _no_documents(plan: BuildPlan, records: Sequence[PartitionRecord]) -> str:
    total = added((record.encoded for record in records), EncodedCounts(0, 0, 0))
    num_bad = sum(record.quarantine.rows for record in records)
    num_pruned = sum(record.not_read for record in records)
    dropped = (
        f", or without a target ({total.chat.dropped:,}; {NO_TURN_HINT})" if total.chat and total.chat.dropped else ""
    )
    pruned = (
        f" ({num_pruned:,} by their paths or the statistics of their row groups, without being read)"
        if num_pruned
        else ""
    )
    return (
        f"{plan.inputs[0].url}: no document in {counted(len(plan.inputs), 'file')}: {counted(total.rows, 'row')} read, "
        f"{total.filtered:,} of them left out by a filter{pruned}, or empty, or shorter than "
        f"documents.min_chars ({plan.spec.documents.min_chars:,}){dropped}, and {num_bad:,} skipped as bad rows; "
        "check the source and the rules"
    )
