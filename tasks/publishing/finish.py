"""Finish a build whose version is published: move the tag, and say what the version holds and what it lacks."""

from __future__ import annotations

import time
from collections.abc import Collection

from tokenloom.storage.formats.manifest import QUARANTINE
from tokenloom.storage.versions import tags
from tokenloom.storage.versions.published import (
    check_lengths,
    find_build_record,
    load_manifest,
    version_path,
)
from tokenloom.tasks.planning.plan import BuildPlan
from tokenloom.tasks.publishing.gates import evaluate_published, failed, published_failure
from tokenloom.tasks.publishing.publish import BuildResult
from tokenloom.tasks.publishing.version_notes import empty_parts, tokenizer_label
from tokenloom.tasks.rows.quarantine import quarantine_reasons


def finish_build(
    plan: BuildPlan, start: float, published: bool = False, encoded: Collection[str] | None = None
) -> BuildResult:
    """Move the plan's tag to the version if the rules allow it (tags.move_by_build); return what the build did.

    A version that the build did not publish itself must pass the spec's checks too, from its recorded figures.

    Args:
        plan: the build's plan.
        start: when it began, by time.monotonic().
        published: whether it made the version visible.
        encoded: names of the spills that it made; None if it found the version published.

    Raises:
        FormatError: a file of the published version is missing or cut short.
        GateFailed: the version was published before and does not pass a check of the spec; the tag stays.
    """
    manifest = load_manifest(plan.store, plan.version)
    check_lengths(plan.store, manifest)
    build = find_build_record(plan.store, plan.version)
    gates = build.gates if build else []
    if not published:
        gates = evaluate_published(plan.store, plan.tag, plan.limits, manifest, build)
        if failed(gates):
            raise published_failure(plan.store, plan.tag, plan.version, gates)
    reasons = (
        quarantine_reasons(plan.store, version_path(plan.version, QUARANTINE)) if manifest.rows.quarantined else {}
    )
    tag_note = tags.move_by_build(plan.store, plan.tag, plan.version, plan.seen_tag_number)
    tag_moved = tags.newest_number(plan.store, plan.tag) != plan.seen_tag_number and tag_note is None
    splits = {
        name: {"tokens": split.tokens, "documents": split.documents, "shards": len(split.shards)}
        for name, split in manifest.splits.items()
    }
    return BuildResult(
        reference=f"{plan.store.root}@{plan.version}",
        version=plan.version,
        published=published,
        splits=splits,
        rows=manifest.row_counts,
        quarantined=reasons,
        tag=plan.tag,
        tag_moved=tag_moved,
        tag_note=tag_note,
        warnings=empty_parts(plan.store, manifest, build),
        gates=gates,
        num_partitions=None if encoded is None else len(plan.partitions),
        num_identical=plan.num_identical,
        num_encoded=len(encoded or ()),
        seconds=round(time.monotonic() - start, 3),
        tokenizer=tokenizer_label(manifest.tokenizer, plan.definition),
        encoders=build.encoders if build else None,
        reference_library=plan.backend,
    )
