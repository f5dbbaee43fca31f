"""Exports that are killed at random moments, as a separate program: REFERENCE DESTINATION NUMBER.

It forks from a process that has imported all. After each kill, whatever is visible is complete; every export is resumed
until it ends, and has the same files as one that nothing disturbed. Prints {"killed": N, "problems": [...]}.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time

from tokenloom.flows.direct import export_directly
from tokenloom.storage.formats.canonical import read_signed
from tokenloom.storage.stores import open_store
from tokenloom.tasks.exporting.destination import SUMMARY, WORK
from tokenloom.tasks.exporting.formats import datatrove
from tokenloom.tasks.exporting.formats.base import ExportOptions
from tokenloom.tasks.exporting.hashed_file import read_record


def _export(reference: str, place: str) -> None:
    export_directly(reference, "datatrove", place, ExportOptions([]), 0)


def _killed(reference: str, place: str, seconds: float) -> bool:
    """Export in a fork that is killed after so many seconds; return whether it was before its end."""
    child = os.fork()
    if not child:
        _export(reference, place)
        os._exit(0)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def _finish(reference: str, place: str) -> None:
    """Export to the end, in a fork, so that this process has no connection when it forks again."""
    child = os.fork()
    if not child:
        _export(reference, place)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def _problem(place: str, whole: dict[str, object]) -> str:
    """Return what is wrong with what is visible at a place, "" if nothing is."""
    store = open_store(place)
    names = [name for name in store.files_below("") if not name.startswith(f"{WORK}/")]
    if SUMMARY not in names:
        if store.is_local:
            return f"half an export is visible: {names}" if names else ""
        # On an object store files appear one by one, each complete.
        return "".join(f"{name} is not complete" for name in names if read_record(store, name) != whole.get(name))
    files = read_signed(store.read(SUMMARY), place)["files"]
    assert isinstance(files, dict)
    return "".join(f"{name} differs" for name in names if name != SUMMARY and read_record(store, name) != whole[name])


def main(reference: str, place: str, number: int) -> None:
    """Kill so many exports."""
    datatrove._PART_BYTES = 4000
    random.seed(0)
    start = time.monotonic()
    _finish(reference, f"{place}-whole")
    seconds = time.monotonic() - start
    store = open_store(f"{place}-whole")
    whole: dict[str, object] = {name: read_record(store, name) for name in store.files_below("")}
    killed, attempt, problems = 0, 0, []
    while killed < number:
        at = f"{place}-{attempt}"
        attempt += 1
        while killed < number and _killed(reference, at, random.uniform(0, 1.2 * seconds)):
            killed += 1
            problems += [f"{at}: {problem}"] if (problem := _problem(at, whole)) else []
        _finish(reference, at)
        problems += [f"{at}: {problem}"] if (problem := _problem(at, whole)) else []
        problems += [f"{at}: not complete"] if not open_store(at).exists(SUMMARY) else []
    print(json.dumps({"killed": killed, "problems": problems}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
