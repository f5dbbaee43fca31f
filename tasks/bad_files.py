"""Explain the bad row that ended a build: how to leave it out, and how many files of its source have such a row."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tokenloom.errors import BadRow, TokenloomError
from tokenloom.tasks.inputs import InputFile
from tokenloom.tasks.plan import BuildPlan
from tokenloom.tasks.running.memory import bounded
from tokenloom.tasks.running.workers import WorkerPool
from tokenloom.tasks.sources import make_reader

_MAX_FILES = 1000
_MAX_SECONDS = 10.0  # a person waits for the message
_FOUND_BY_RULES = ("too_large", "bad_id")  # not by a reader


@dataclass(frozen=True)
class SameProblemJob:
    """Files of one source to read, and the reason code to look for; see REASONS."""

    files: list[InputFile]
    reason: str


def with_way_out(plan: BuildPlan, error: BadRow) -> BadRow:
    """Return the error with the option that leaves such rows out, unless its message names it or the spec sets it."""
    if "on_error" in str(error) or plan.spec.documents.on_error == "skip":
        return error
    return _extended(error, ", or leave out bad rows (documents.on_error: skip)")


def with_file_count(plan: BuildPlan, error: BadRow, num_workers: int) -> BadRow:
    """Return the error with the number of files, of the first thousand of its source, that have such a row.

    Args:
        plan: the build's plan.
        error: the error that one of its inputs raised.
        num_workers: the build's worker processes; with 0 this process reads the files.
    """
    files = [file for file in plan.inputs if file.source == error.source]
    if len(files) < 2 or error.reason in _FOUND_BY_RULES:
        return error
    with WorkerPool(min(num_workers, 1)) as pool:  # the build's own pool ends with the error
        try:
            num_seen, num_bad = pool.call(count_files, SameProblemJob(files[:_MAX_FILES], error.reason))
        except TokenloomError:  # a file killed the worker: report the first error
            return error
    if not num_seen or (not num_bad and num_seen == len(files)):  # the row is deeper in its file than was read
        return error
    seen = f"{num_seen:,}" if num_seen == len(files) else f"first {num_seen:,}"
    has, its = ("have", "their") if num_bad != 1 else ("has", "its")
    count = f"{num_bad:,} of the {seen} files of source {error.source} {has} this problem in {its} first 4 MB"
    return _extended(error, f". {count}")


def _extended(error: BadRow, text: str) -> BadRow:
    """Return the error with a longer message."""
    extended = BadRow(f"{error}{text}", error.row, error.reason, error.num_rows)
    extended.source = error.source
    return extended


def count_files(job: SameProblemJob) -> tuple[int, int]:
    """Return how many files were read, and how many of them have a row with the reason in their first batch."""
    end = time.monotonic() + _MAX_SECONDS
    num_seen = num_bad = 0
    for file in job.files:
        if time.monotonic() > end:
            break
        found = _has_problem(file, job.reason)
        num_seen += found is not None
        num_bad += found is True
    return num_seen, num_bad


def _has_problem(file: InputFile, reason: str) -> bool | None:
    """Return whether the first batch of a file has such a row; None if it can't be read here."""
    try:
        with bounded(file.options["max_bytes"], file.url):
            reader = make_reader({**file.options, "on_error": "skip"})
            part = next(iter(reader.partitions(file.url)), None)
            rows = next(reader.read(file.url, part), None) if part else None
            return rows is not None and any(bad.reason == reason for bad in rows.bad)
    except TokenloomError:
        return None
