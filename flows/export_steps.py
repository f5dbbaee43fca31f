"""The order of an export, written once: run by Prefect (version_flows.py) or directly."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from tokenloom.tasks.exporting.base import ExportOptions, FileRecord
from tokenloom.tasks.exporting.export import Export, begin, finish, open_export, result_of, write_unit
from tokenloom.tasks.running import progress
from tokenloom.tasks.running.steps import Job, Runner, open_workers
from tokenloom.tasks.sizes import MAX_SMALL_TASKS

_TASK_TOKENS = 32_000_000


def export_directly(
    reference: str, name: str, destination: str, options: ExportOptions, num_workers: int
) -> dict[str, Any]:
    """Export a version in this process and its children; see run_export for arguments and errors."""
    with open_workers(num_workers) as runner:
        return run_export(reference, name, destination, options, runner)


def run_export(
    reference: str,
    name: str,
    destination: str,
    options: ExportOptions,
    runner: Runner,
) -> dict[str, Any]:
    """Export a version, or finish an export that was killed.

    Args:
        reference: STORE/DATASET@TAG_OR_VERSION.
        name: of the format.
        destination: a local path or a URL.
        options: of the export.
        runner: runs the steps.

    Raises:
        SpecError: the version does not fit into the format, or an option is wrong.
        StoreError: the version does not exist, something else is at the destination, or a store fails.
        FormatError: a file of the version is damaged.
    """
    progress.report(progress.StepStarted("open", 0))
    export: Export = runner.one("open", lambda: open_export(reference, name, destination, options))
    if found := runner.one("begin", lambda: begin(export)):
        return result_of(export, found, existed=True)
    progress.warn(export.losses)
    records = _write(export, runner)
    return result_of(export, runner.one("finish", lambda: finish(export, records)), existed=False)


def _write(export: Export, runner: Runner) -> dict[str, FileRecord]:
    """Write all units."""
    weights = [unit.documents.num_tokens for unit in export.units]
    progress.report(progress.StepStarted("export", sum(weights), "files", sum(len(u.files) for u in export.units)))
    jobs = [Job(unit.files[0], unit, weight) for unit, weight in zip(export.units, weights, strict=True)]
    facts = replace(export.facts, splits={})  # a unit has the documents that it needs
    write = partial(write_unit, export.store, export.format, facts)
    done = runner.each("export", write, jobs, _TASK_TOKENS, MAX_SMALL_TASKS)
    return {name: record for records in done for name, record in records.items()}
