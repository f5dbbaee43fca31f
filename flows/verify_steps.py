"""The order of a verification, written once: run by Prefect (version_flows.py) or directly."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any

from tokenloom.storage.verification import Damage
from tokenloom.tasks.running import progress
from tokenloom.tasks.running.steps import Runner, open_workers
from tokenloom.tasks.sizes import MAX_SMALL_TASKS
from tokenloom.tasks.verify import (
    DamagedFile,
    OpenedVersion,
    Report,
    VerificationResult,
    open_version,
    verify_files,
)
from tokenloom.tasks.verify_sources import checked_spec, deep_jobs, verify_encoding

if TYPE_CHECKING:  # only a deep verification imports it: the import takes as long as reading a gigabyte
    from tokenloom.spec.build_spec import BuildSpec

_TASK_BYTES = 64_000_000


def verify_directly(reference: str, deep: bool, spec: BuildSpec | None, num_workers: int) -> dict[str, Any]:
    """Verify a version in this process and its children; see run_verification for arguments and errors."""
    with open_workers(num_workers) as runner:
        return dict(run_verification(reference, deep, spec, runner))


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
    jobs, warnings = subject.jobs(), list(subject.warnings)
    progress.report(progress.StepStarted("read", sum(job.weight for job in jobs)))
    verify = partial(verify_files, subject.store, subject.version)
    reports: list[Report] = runner.each("read", verify, jobs, _TASK_BYTES, MAX_SMALL_TASKS)
    if deep and subject.manifest:
        damaged = {damage.file for report in reports for damage in report.damages}
        build, samples, notes = runner.one("find sources", lambda: deep_jobs(subject, damaged, spec))
        warnings += notes
        progress.report(progress.StepStarted("encode", sum(sample.weight for sample in samples)))
        reports = reports + runner.each("encode", partial(verify_encoding, build), samples, max_tasks=MAX_SMALL_TASKS)
    return {
        "reference": subject.reference,
        "version": subject.version,
        "files": sum(report.num_files for report in reports) + bool(subject.version),
        "bytes": sum(report.num_bytes for report in reports),
        "documents_encoded_again": sum(report.num_documents for report in reports),
        "damages": _by_file([*subject.damages, *(damage for report in reports for damage in report.damages)]),
        "warnings": list(dict.fromkeys([*warnings, *(line for report in reports for line in report.warnings)])),
    }


def _by_file(damages: list[Damage]) -> list[DamagedFile]:
    """Return the damaged files in the order they were found."""
    by_file: defaultdict[str, list[Damage]] = defaultdict(list)
    for damage in damages:
        by_file[damage.file].append(damage)
    return [
        DamagedFile(file=file, what="; ".join(damage.what for damage in found), next_step=_next_step(file))
        for file, found in by_file.items()
    ]


def _next_step(file: str) -> str:
    if file.startswith("tags/"):
        return "restore it from a copy; deleting the newest entry of a log makes the previous entry valid again"
    what = "it" if file.endswith("/manifest.json") else "it and the manifest.json of its version"
    return f"restore it from a copy, or delete {what} and build again from the same inputs, which makes the same bytes"
