"""How many files of a source have the trouble that ended a build: is it one file, or is the spec wrong for all?"""

from __future__ import annotations

import time
from dataclasses import dataclass

from tokenloom.errors import BadRow, TokenloomError
from tokenloom.tasks.inputs import InputFile
from tokenloom.tasks.plan import BuildPlan
from tokenloom.tasks.running.memory import bounded
from tokenloom.tasks.running.workers import WorkerPool
from tokenloom.tasks.sources import make_reader

_MOST_FILES = 1000
_MOST_SECONDS = 10.0  # somebody waits for the message
_BY_THE_RULES = ("too_large", "bad_id")  # found after the reader


@dataclass(frozen=True)
class TroubleJob:
    """Files of one source to look at, and the reason of a bad row; see REASONS."""

    files: list[InputFile]
    reason: str


def with_count(plan: BuildPlan, error: BadRow, num_workers: int) -> BadRow:
    """Return an error that also says how many of the first thousand files of its source have such a row.

    Args:
        plan: of the build.
        error: of one of its inputs.
        num_workers: of the build; with 0 the files are read in this process.
    """
    files = [file for file in plan.inputs if file.source == error.source]
    if len(files) < 2 or error.reason in _BY_THE_RULES:
        return error
    with WorkerPool(min(num_workers, 1)) as pool:  # that of the build ends with the error
        try:
            num_seen, num_bad = pool.call(count_same, TroubleJob(files[:_MOST_FILES], error.reason))
        except TokenloomError:  # a file killed the worker: what went wrong first is what is reported
            return error
    if not num_seen or (not num_bad and num_seen == len(files)):  # the row lies deeper in its file than was looked
        return error
    seen = f"{num_seen:,}" if num_seen == len(files) else f"first {num_seen:,}"
    has, its = ("have", "their") if num_bad != 1 else ("has", "its")
    count = f"{num_bad:,} of the {seen} files of source {error.source} {has} this trouble in {its} first 4 MB"
    counted = BadRow(f"{error}. {count}", error.row, error.reason, error.num_rows)
    counted.source = error.source
    return counted


def count_same(job: TroubleJob) -> tuple[int, int]:
    """Return how many files were looked at, and how many of them have a row with the reason in their first batch."""
    end = time.monotonic() + _MOST_SECONDS
    num_seen = num_bad = 0
    for file in job.files:
        if time.monotonic() > end:
            break
        found = _has(file, job.reason)
        num_seen += found is not None
        num_bad += found is True
    return num_seen, num_bad


def _has(file: InputFile, reason: str) -> bool | None:
    """Return whether the first batch of a file has such a row; None if it can't be read here."""
    try:
        with bounded(file.options["max_bytes"], file.url):
            reader = make_reader({**file.options, "on_error": "skip"})
            part = next(iter(reader.partitions(file.url)), None)
            rows = next(reader.read(file.url, part), None) if part else None
            return rows is not None and any(bad.reason == reason for bad in rows.bad)
    except TokenloomError:
        return None
