"""The order of an export, written once: run by Prefect (export_dataset.py) or directly (direct.py)."""

from __future__ import annotations

from tokenloom.tasks.exporting.export import (
    Export,
    ExportResult,
    begin,
    find_complete,
    finish,
    open_export,
    result_of,
    write_unit,
)
from tokenloom.tasks.exporting.formats.base import ExportOptions
from tokenloom.tasks.exporting.hashed_file import FileRecord
from tokenloom.tasks.running import progress
from tokenloom.tasks.running.batching import MAX_SMALL_TASKS, WeightedJob, batch_jobs, run_batches
from tokenloom.tasks.running.steps import RunEach, RunOne

_TASK_TOKENS = 32_000_000


def run_export(
    reference: str,
    name: str,
    destination: str,
    options: ExportOptions,
    num_workers: int,
    run_one: RunOne,
    run_each: RunEach,
) -> ExportResult:
    """Export a version, or finish an export that was killed.

    Args:
        reference: STORE/DATASET@TAG_OR_VERSION.
        name: of the format.
        destination: a local path or a URL.
        options: of the export.
        num_workers: processes among which the work is divided.
        run_one: runs a step.
        run_each: runs a step for many jobs.

    Raises:
        SpecError: the version does not fit into the format, or an option is wrong.
        StoreError: the version does not exist, something else is at the destination, or a store fails.
        FormatError: a file of the version is damaged.
    """
    progress.report(progress.StepStarted("open", 0))
    export: Export = run_one("open", lambda: open_export(reference, name, destination, options))
    if found := run_one("find", lambda: find_complete(export)):
        return result_of(export, found, existed=True)
    for line in export.losses:
        progress.report(progress.Message(line))
    run_one("begin", lambda: begin(export))
    records = _write(export, num_workers, run_each)
    return result_of(export, run_one("finish", lambda: finish(export, records)), existed=False)


def _write(export: Export, num_workers: int, run_each: RunEach) -> dict[str, FileRecord]:
    """Write all units."""
    weights = [unit.documents.num_tokens for unit in export.units]
    progress.report(progress.WorkKnown((("export", 1.0),)))
    progress.report(progress.StepStarted("export", sum(weights), "files", sum(len(u.files) for u in export.units)))
    jobs = export.jobs()
    weighted = [WeightedJob(job.unit.files[0], job, weight) for job, weight in zip(jobs, weights, strict=True)]
    batches = batch_jobs(weighted, num_workers, _TASK_TOKENS, MAX_SMALL_TASKS)
    done = run_batches(run_each, "export", write_unit, batches)
    return {name: record for records in done for name, record in records.items()}
