"""Builds whose disk becomes full or fails otherwise, as a separate program; test_machine_faults.py starts it.

    python -m tests.drivers.enospc_driver FOLDER ERRNO STEP    from operation n on, for n = 0, STEP, 2 STEP, ...

Reads FOLDER/spec.json. Every create, write, sync, rename, link and new folder from operation n on fails with ERRNO
(ENOSPC); a write fails before its first byte, or with half of its bytes written. Then the disk has space again and the
same build is run once more. The links and syncs of the last step are tried whatever STEP is. Prints one JSON
object each.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path

from tests.drivers.kill_driver import Killer, build_and_hash, build_noted, find_incomplete, forget, forked, undisturbed
from tokenloom.errors import StoreError
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.tasks.running import steps

FAILING = ("create", "write", "torn write", "fsync", "replace", "link", "mkdir")


class FullDisk(Killer):
    """Makes every disk operation from number `at` on fail."""

    def __init__(self, at: int, note: int, number: int) -> None:
        super().__init__(at, note)
        self._number = number

    def strike(self, operation: str) -> None:
        """Fail if the operation needs the disk."""
        if operation in FAILING:
            raise OSError(self._number, os.strerror(self._number))


def _build_on_full_disk(spec: BuildSpec, folder: Path, at: int, number: int) -> None:
    message = os.open(folder / "message", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)  # later there is no space for it
    try:
        build_noted(spec, folder, lambda note: FullDisk(at, note, number))
    except StoreError as error:
        os.write(message, str(error).encode())
        os._exit(error.exit_code)


def _fail_and_resume(spec: BuildSpec, folder: Path, at: int, number: int, expected: str) -> dict[str, str | None]:
    """Return {"message", "problem"}: the build's message, and the problem or None."""
    dataset = Path(spec.store) / spec.dataset
    status = forked(lambda: _build_on_full_disk(spec, folder, at, number))
    message = (folder / "message").read_text()
    problem = None if status == StoreError.exit_code and message else f"no StoreError, exit status {status}"
    problem = problem or find_incomplete(dataset)
    for part in (str(dataset.parent), os.strerror(number)):
        problem = problem or (None if part in message else f"{part!r} is not in {message!r}")
    if not problem and list(dataset.glob("work/tmp/*")):
        problem = "temporaries stayed"
    if not problem and list(dataset.glob("versions/*/manifest.json")) and "/tags/" not in message:
        problem = "a version is visible"
    if not problem and list(dataset.glob("tags/latest/*.json")):
        problem = "a tag is visible"
    if not problem and (status := forked(lambda: build_and_hash(spec, folder))) != 0:
        problem = f"the resume failed: {status}"
    if not problem and (folder / "hashes").read_text() != expected:
        problem = "the resumed build has other bytes"
    return {"message": message, "problem": problem or find_incomplete(dataset, must_be_visible=True)}


def fail_from_every_operation(folder: Path, number: int, step: int) -> None:
    """Print {"step", "operation", "message", "problem"} for each operation that is chosen."""
    setattr(steps, "RETRY_SECONDS", ())  # noqa: B010  (an EIO can be transient, and is retried)
    spec, expected, operations = undisturbed(folder)
    for at, (name, operation) in enumerate(operations):
        if operation in FAILING and (at % step == 0 or (name == "publish" and operation in ("link", "fsync"))):
            forget(spec, folder)
            outcome = _fail_and_resume(spec, folder, at, number, expected)
            print(json.dumps({"step": name, "operation": operation, **outcome}), flush=True)


if __name__ == "__main__":
    fail_from_every_operation(Path(sys.argv[1]), getattr(errno, sys.argv[2]), int(sys.argv[3]))
