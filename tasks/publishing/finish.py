"""Finish a build whose version is published: move the tag, and say what the build did."""

from __future__ import annotations

import time

from tokenloom.storage.versions import tags
from tokenloom.storage.versions.published import check_lengths, refuse_deleted
from tokenloom.tasks.planning.plan import BuildPlan
from tokenloom.tasks.publishing.gates import evaluate_gates, failed, published_failure
from tokenloom.tasks.publishing.publish import BuildResult
from tokenloom.tasks.publishing.version_facts import facts_of


def finish_build(plan: BuildPlan, start: float, published: bool | None = None) -> BuildResult:
    """Move the plan's tag to the version if the rules allow it (tags.move_by_build); return what the build did.

    A version that the build did not publish itself must pass the spec's checks too, from its recorded figures.

    Args:
        plan: the build's plan.
        start: when it began, by time.monotonic().
        published: whether it made the version visible; None if it found the version published.

    Raises:
        FormatError: a file of the published version is missing or cut short.
        VersionDeleted: gc deleted the version before the tag named it; the same command builds it again.
        GateFailed: the version was published before and does not pass a check of the spec; the tag stays.
    """
    facts = facts_of(plan.store, plan.version)
    if not published:
        check_lengths(plan.store, facts.manifest)
    gates = facts.recorded_gates if published else evaluate_gates(facts, plan.tag, plan.limits)
    if not published and failed(gates):
        raise published_failure(facts, plan.tag, gates)
    facts.to_json()  # a damaged file fails the build before its tag moves
    tag_note = tags.move_by_build(plan.store, plan.tag, plan.version, plan.seen_tag_number)
    refuse_deleted(plan.store, plan.version)
    return BuildResult(
        facts=facts,
        published=bool(published),
        tag=plan.tag,
        tag_moved=tags.newest_number(plan.store, plan.tag) != plan.seen_tag_number and tag_note is None,
        tag_note=tag_note,
        gates=gates,
        num_partitions=None if published is None else len(plan.partitions),
        num_identical=plan.num_identical,
        num_encoded=len(plan.missing),
        seconds=round(time.monotonic() - start, 3),
        reference_library=plan.reference.backend,
    )
