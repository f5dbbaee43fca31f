"""The order of a verification, written once: run by Prefect (version_flows.py) or directly (direct.py)."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from tokenloom.errors import FormatError
from tokenloom.storage.stores.remote_errors import is_transient, reason_of
from tokenloom.storage.verification.file_checks import Damage
from tokenloom.tasks.running import progress
from tokenloom.tasks.running.steps import MAX_SMALL_TASKS, Job, Runner
from tokenloom.tasks.verification.sample import SampleJob
from tokenloom.tasks.verification.sources import checked_spec, recorded_spec
from tokenloom.tasks.verification.verify import (
    DamagedFile,
    FileReport,
    OpenedVersion,
    VerificationResult,
    VerifyJob,
    open_version,
    verify_files,
)
from tokenloom.tasks.verification.verify_sources import EncodingReport, deep_jobs, verify_encoding

if TYPE_CHECKING:  # only a deep verification imports it: the import takes as long as reading a gigabyte
    from tokenloom.spec.build_spec import BuildSpec

_TASK_BYTES = 64_000_000


def run_verification(
    reference: str,
    deep: bool,
    spec: BuildSpec | None,
    runner: Runner,
) -> VerificationResult:
    """Verify every file of a version.

    Args:
        reference: STORE/DATASET@TAG_OR_VERSION.
        deep: encode about 1,000 documents again from their sources.
        spec: where the sources are, with absolute paths; None for the spec in build.json.
        runner: runs the steps.

    Raises:
        StoreError: the version does not exist, or the store can't be read.
        SpecError: the version was not built from `spec`.
    """
    progress.report(progress.StepStarted("open", 0))
    subject: OpenedVersion = runner.one("open", lambda: open_version(reference))
    if spec and subject.manifest:
        spec = checked_spec(spec, subject.manifest, "--spec")
    jobs = subject.jobs()
    checked = _read(jobs, runner)
    encoded: list[EncodingReport] = []
    warnings = list(subject.warnings)
    if deep and subject.manifest:
        deep_jobs, notes = runner.one("find sources", lambda: _deep_jobs(subject, checked, spec))
        encoded = _encode(deep_jobs, runner)
        warnings += notes
    damages = [*subject.damages, *(damage for report in checked for damage in report.damages)]
    damages += [damage for report in encoded for damage in report.damages]
    warnings += [warning for report in encoded for warning in report.warnings]
    return {
        "reference": subject.reference,
        "version": subject.version,
        "files": sum(report.num_files for report in checked) + bool(subject.version),
        "bytes": sum(report.num_bytes for report in checked),
        "documents_encoded_again": sum(report.num_documents for report in encoded),
        "damages": _by_file(damages),
        "warnings": list(dict.fromkeys(warnings)),
    }


def _read(jobs: list[VerifyJob], runner: Runner) -> list[FileReport]:
    """Read all files."""
    progress.report(progress.StepStarted("read", sum(job.weight for job in jobs)))
    weighted = [Job(next(iter(job.digests)), job, job.weight) for job in jobs]
    return runner.each("read", verify_files, weighted, _TASK_BYTES, MAX_SMALL_TASKS)


def _encode(jobs: list[SampleJob], runner: Runner) -> list[EncodingReport]:
    """Encode the chosen documents again."""
    progress.report(progress.StepStarted("encode", sum(len(job.documents) for job in jobs)))
    weighted = [Job(job.file.path, job, len(job.documents)) for job in jobs]
    return runner.each("encode", verify_encoding, weighted, max_tasks=MAX_SMALL_TASKS)


def _by_file(damages: list[Damage]) -> list[DamagedFile]:
    """Return the damaged files in the order they were found."""
    by_file: defaultdict[str, list[Damage]] = defaultdict(list)
    for damage in damages:
        by_file[damage.file].append(damage)
    return [
        DamagedFile(
            file=file,
            what="; ".join(damage.what for damage in found),
            next_step=_next_step(file),
        )
        for file, found in by_file.items()
    ]


def _next_step(file: str) -> str:
    if file.startswith("tags/"):
        return "restore it from a copy; deleting the newest entry of a log makes the previous entry valid again"
    what = "it" if file.endswith("/manifest.json") else "it and the manifest.json of its version"
    return f"restore it from a copy, or delete {what} and build again from the same inputs, which makes the same bytes"


def _deep_jobs(
    subject: OpenedVersion, checked: list[FileReport], spec: BuildSpec | None
) -> tuple[list[SampleJob], list[str]]:
    """Return the documents to encode again, and the reasons why some can't be."""
    if subject.inputs is None:
        return [], ["no document was encoded again: inputs.json is damaged"]
    assert subject.manifest is not None  # it was readable, as its inputs were
    try:
        spec = spec or recorded_spec(subject.store, subject.manifest)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        if is_transient(error):
            raise
        return [], [f"no document was encoded again: build.json does not say how ({reason_of(error)}); give --spec"]
    try:
        return deep_jobs(subject, {damage.file for report in checked for damage in report.damages}, spec)
    except FormatError as error:  # a file of the tokenizer; the job that reads it reports it too
        return [], [f"no document was encoded again: {error}"]
