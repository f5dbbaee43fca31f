"""Explain the bad row that ended a build: how to leave it out, and how many files of its source have such a row."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

from tokenloom.errors import BadRow, TokenloomError
from tokenloom.tasks.planning.inputs import InputFile
from tokenloom.tasks.planning.plan import BuildPlan
from tokenloom.tasks.running.memory import bounded
from tokenloom.tasks.running.workers import WorkerPool
from tokenloom.tasks.sources import make_reader

_MAX_FILES = 1000
_MAX_SECONDS = 10.0  # because a person waits for the message
_FOUND_LATER = ("too_large", "bad_id", "template", "no_spans", "special_token")  # reasons that no reader finds


@dataclass(frozen=True)
class SameProblemJob:
    """Files of one source to read, and the reason code to look for; see REASONS."""

    files: list[InputFile]
    reason: str


@dataclass
class FilesRead:
    """What the first batches of some files hold."""

    num_seen: int = 0  # files that could be read
    num_bad: int = 0  # of them, files with a row that has the problem
    num_good_rows: int = 0


def explained(plan: BuildPlan, error: BadRow, num_workers: int) -> BadRow:
    """Return the error with what was found in the files of its source: how many have such a row, and the way out.

    No option that changes such rows or leaves them out is offered if no row of the first thousand files was read well.

    Args:
        plan: the build's plan.
        error: the error that one of its inputs raised.
        num_workers: the build's worker processes; with 0 this process reads the files.
    """
    files = [file for file in plan.inputs if file.source == error.source]
    found = FilesRead()
    if error.reason not in _FOUND_LATER:
        with WorkerPool(min(num_workers, 1)) as pool, suppress(TokenloomError):  # the build's own pool ends with it
            found = pool.call(read_files, SameProblemJob(files[:_MAX_FILES], error.reason))
    if found.num_bad and not found.num_good_rows:
        error = error.changed(option="")
    elif plan.spec.documents.on_error != "skip":
        leave_out = "leave out bad rows (documents.on_error: skip)"
        error = error.changed(option=f"{error.option}, or {leave_out}" if error.option else leave_out)
    if len(files) < 2 or not found.num_seen or (not found.num_bad and found.num_seen == len(files)):
        return error  # the row may be deeper in its file than was read
    seen = f"{found.num_seen:,}" if found.num_seen == len(files) else f"first {found.num_seen:,}"
    has, its = ("have", "their") if found.num_bad != 1 else ("has", "its")
    count = f"{found.num_bad:,} of the {seen} files of source {error.source} {has} this problem in {its} first 4 MB"
    return error.changed(message=f"{error}. {count}", option="")


def read_files(job: SameProblemJob) -> FilesRead:
    """Read the first batch of files, for ten seconds at most."""
    end = time.monotonic() + _MAX_SECONDS
    found = FilesRead()
    for file in job.files:
        if time.monotonic() > end:
            break
        with suppress(TokenloomError), bounded(file.options["max_bytes"], file.url):  # it can't be read here
            reader = make_reader({**file.options, "on_error": "skip"})
            part = next(iter(reader.partitions(file.url)), None)
            rows = next(reader.read(file.url, part), None) if part else None
            if rows is not None:
                found.num_seen += 1
                found.num_bad += any(bad.reason == job.reason for bad in rows.bad)
                found.num_good_rows += len(rows.texts)
    return found
