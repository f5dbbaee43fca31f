"""Exports that are killed at random moments, as a separate program: REFERENCE DESTINATION NUMBER NUM_WORKERS.

Each export is of another format than the last. It forks from a process that has imported all; the workers of an export
are not killed, but end when they notice. After each kill, whatever is visible is complete; every export is resumed
until it ends, and has the same files as one that nothing disturbed. Prints {"killed": N, "problems": [...]}.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import s3fs  # noqa: F401  (a fork would import it each time)

import tokenloom.flows.export_steps  # noqa: F401  (the same)
from tests.builders.exported import small_parts
from tests.counts import FULL
from tokenloom.flows.direct import export_directly
from tokenloom.storage.formats.records import fields_of, read_signed
from tokenloom.storage.stores import Store, open_store
from tokenloom.tasks.exporting.base import ExportOptions, hashed
from tokenloom.tasks.exporting.export import BEGUN, FORMATS, SUMMARY

_FIRST = ("datatrove", "mds", "huggingface")  # of a run with few kills


class _Kills:
    """Exports of a reference, and what was wrong with them."""

    def __init__(self, reference: str, place: str, num_workers: int) -> None:
        self._reference, self._place, self._num_workers = reference, place, num_workers
        self._whole: dict[str, tuple[float, dict[str, object]]] = {}
        self.killed = 0
        self.problems: list[str] = []

    def run(self, number: int) -> None:
        """Kill so many exports."""
        formats = cycle([*_FIRST, *(name for name in FORMATS if name not in _FIRST)])
        for attempt, name in enumerate(formats):
            if self.killed == number:
                return
            seconds, whole = self._undisturbed(name)
            at = f"{self._place}-{attempt}"
            while self.killed < number and self._export(name, at, random.uniform(0, 1.2 * seconds)):
                self.killed += 1
                self._note(at, _problems(at, whole))
            self._export(name, at)
            self._note(at, _problems(at, whole) or _unfinished(at, hidden=self._num_workers == 0))

    def _undisturbed(self, name: str) -> tuple[float, dict[str, object]]:
        """Return how long an export of a format takes, and its files."""
        if name not in self._whole:
            at, begin = f"{self._place}-{name}", time.monotonic()
            self._export(name, at)
            self._whole[name] = time.monotonic() - begin, _in_fork(lambda: _records(at))
        return self._whole[name]

    def _export(self, name: str, place: str, seconds: float | None = None) -> bool:
        """Export in a fork, which is killed after so many seconds; return whether it was before its end."""
        child = os.fork()
        if not child:
            export_directly(self._reference, name, place, ExportOptions([]), self._num_workers)
            os._exit(0)
        if seconds is not None:
            time.sleep(seconds)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) if seconds is not None and status else status == 0, f"{name}: {status}"
        return os.WIFSIGNALED(status)

    def _note(self, at: str, problems: list[str]) -> None:
        self.problems += [f"{at}: {problem}" for problem in problems]


def _in_fork(function: Callable[[], object]) -> Any:
    """Return what a function returns, as JSON has it; called in a fork, as a connection to a store survives none."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        with os.fdopen(writing, "w") as file:
            json.dump(function(), file)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        found = json.load(file)
    os.waitpid(child, 0)
    return found


def _record(store: Store, path: str) -> object:
    return fields_of(hashed(store, path))


def _records(place: str) -> dict[str, object]:
    store = open_store(place)
    return {path: _record(store, path) for path in store.files_below("")}


def _problems(place: str, whole: dict[str, object]) -> list[str]:
    """Return what is wrong with what is visible at a place."""
    found: list[str] = _in_fork(lambda: list(_wrong(place, whole)))
    return found


def _unfinished(place: str, *, hidden: bool) -> list[str]:
    """Return what shows that an export has not ended: no summary, and if asked its folder NAME.tmp."""
    staged = Path(f"{place}.tmp")
    found = [] if _in_fork(lambda: open_store(place).exists(SUMMARY)) else ["it is not complete"]
    return found + (["its folder NAME.tmp is still there"] if hidden and staged.exists() else [])


def _wrong(place: str, whole: dict[str, object]) -> Iterator[str]:
    store = open_store(place)
    names = [name for name in store.files_below("") if not name.startswith(("work/", BEGUN))]
    if SUMMARY not in names:
        if store.is_local and names:
            yield f"half an export is visible: {names}"
        # On an object store files appear one by one, each complete.
        yield from (f"{name} is not complete" for name in names if _record(store, name) != whole.get(name))
        return
    files = read_signed(store.read(SUMMARY), place)["files"]
    assert isinstance(files, dict)
    if {*files, SUMMARY} != set(names) or set(names) != set(whole):
        yield f"it has other files: {names}"
    yield from (f"{name} differs" for name in names if _record(store, name) != whole.get(name))


def main(reference: str, place: str, number: int, num_workers: int) -> None:
    """Kill so many exports, and print what was found."""
    with pytest.MonkeyPatch.context() as patch:
        if FULL or "://" not in place:  # many small files take seconds on an object store
            small_parts(patch)
        random.seed(0)
        kills = _Kills(reference, place, num_workers)
        kills.run(number)
    print(json.dumps({"killed": kills.killed, "problems": kills.problems}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
