"""Reject a build after counting its rows: a key that no row has, a source with only bad rows, no document at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tokenloom.errors import InputError
from tokenloom.spec.row_filter import columns_of, parse_filter
from tokenloom.storage.formats.statistics import add_chats
from tokenloom.storage.work.partition_records import PartitionRecord
from tokenloom.tasks.planning.plan import BuildPlan, partitions_by_source
from tokenloom.tasks.sources.naming import naming_source, with_line
from tokenloom.wording import counted

NO_TURN_HINT = "if the template has {% generation %}, check that it gets there for messages of the assistant"


def check_documents_found(plan: BuildPlan, records: Mapping[str, PartitionRecord]) -> None:
    """Raise InputError if the sources of a build hold no document, or if no row has a key that they name.

    Args:
        plan: with its partitions.
        records: the records of partitions, by the name of their spills, see PartitionRecord. A source is checked only
            if all of its partitions have one.

    Raises:
        InputError: names what is missing, and where.
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
        reasons: Counter[str] = Counter()
        for summary in lists:
            reasons.update(summary.reasons)
        listed = ", ".join(f"{count:,} {reason}" for reason, count in sorted(reasons.items()))
        num_bad = counted(sum(reasons.values()), "bad row")
        raise InputError(
            f"source {source}: no document, and {num_bad} ({listed}); check the source. The first of them: "
            f"{with_line(lists[0].first)}"
        )


def _missing_keys(filter_text: str | None, records: Sequence[PartitionRecord]) -> list[str]:
    """Return the keys that no row has, sorted."""
    unseen = [set(record.unseen) for record in records if record.read]
    missing = set.intersection(*unseen) if unseen else set()
    if not any(record.spills for record in records):  # the id of a row that the filter leaves out is not read
        was_filtered = any(record.filtered for record in records)
        missing &= set(columns_of(parse_filter(filter_text))) if filter_text and was_filtered else set()
    return sorted(missing)


def _no_documents(plan: BuildPlan, records: Sequence[PartitionRecord]) -> str:
    num_read, num_filtered = sum(record.read for record in records), sum(record.filtered for record in records)
    num_bad = sum(record.quarantine.rows for record in records)
    num_pruned = sum(record.not_read for record in records)
    chat = add_chats(record.chat for record in records)
    dropped = f", or without a target ({chat.dropped:,}; {NO_TURN_HINT})" if chat and chat.dropped else ""
    pruned = (
        f" ({num_pruned:,} by their paths or the statistics of their row groups, without being read)"
        if num_pruned
        else ""
    )
    return (
        f"{plan.inputs[0].url}: no document in {counted(len(plan.inputs), 'file')}: {counted(num_read, 'row')} read, "
        f"{num_filtered:,} of them left out by a filter{pruned}, or empty, or shorter than "
        f"documents.min_chars ({plan.spec.documents.min_chars:,}){dropped}, and {num_bad:,} skipped as bad rows; "
        "check the source and the rules"
    )
