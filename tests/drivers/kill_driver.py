"""Builds that are killed, as separate programs; test_kills.py starts them.

    python -m tests.drivers.kill_driver every FOLDER    kill a small build before each operation, then resume it
    python -m tests.drivers.kill_driver run FOLDER      one build; its steps are noted in FOLDER/steps

Each reads FOLDER/spec.json. `every` forks from a process that has imported all but started no thread, so that
hundreds of killed builds take seconds. It prints one JSON object a kill.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import io
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from tests.builders import datasets
from tests.counts import FULL
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.stores import local_files
from tokenloom.tasks import sizes
from tokenloom.tasks.running import progress

_IMPORTED_LATE = (  # by the steps, when needed: a fork would do it each time
    *("dateutil.relativedelta", "fsspec.implementations.local", "numpy.ma", "tokenloom.chat.encoding"),
    *("tokenloom.tasks.building.chat", "tokenloom.tasks.sources.records", "tokenloom.tasks.sources.parquet"),
)
_RAW_WRITE = os.write  # notes are written past all that is counted


class Killer:
    """Counts the disk operations of a build, and kills this process before operation number `at`.

    Args:
        at: the operation to die before, counted from 0; None only counts.
        note: descriptor that takes "step operation" of each operation that begins.
    """

    def __init__(self, at: int | None, note: int) -> None:
        self._at = at
        self._note = note
        self._count = 0
        self.step = "plan"

    def tick(self, operation: str) -> None:
        """Record an operation that is about to begin; die if it is the chosen one."""
        if self._at is None or self._count == self._at:
            _RAW_WRITE(self._note, f"{self.step} {operation}\n".encode())
        if self._at is not None and self._count >= self._at:
            self.strike(operation)
        self._count += 1

    def strike(self, operation: str) -> None:
        """Handle the chosen operation and those after it: here the process dies."""
        os.kill(os.getpid(), signal.SIGKILL)

    def listen(self, event: progress.Event) -> None:
        """Follow the steps; their starts count too, since validate writes nothing."""
        if isinstance(event, progress.StepStarted):
            self.step = event.step
            self.tick("start")

    def install(self) -> None:
        """Intercept every create, write, sync, rename, link, removal and new folder of this process."""

        def before(operation: str, function: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*arguments: Any, **options: Any) -> Any:
                self.tick(operation)
                return function(*arguments, **options)

            return wrapped

        opened = Path.open

        def open_path(path: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if "r" not in mode:
                self.tick("create")
            return opened(path, mode, *arguments, **options)

        os.fsync = before("fsync", lambda _: None)  # a SIGKILL loses no page, and the device is slow
        for name in ("link", "replace"):
            setattr(os, name, before(name, getattr(os, name)))
        for name in ("mkdir", "unlink"):
            setattr(Path, name, before(name, getattr(Path, name)))
        setattr(Path, "open", open_path)  # noqa: B010  (mypy refuses the plain assignment to a method)
        new_file = pa.ipc.new_file
        pa.ipc.new_file = lambda sink, schema: new_file(_CountedFile(sink, self), schema)
        local_files.write_all = self.write_all

    def write_all(self, file: IO[bytes], data: bytes | memoryview) -> None:
        """Write in two halves and flush the first, so that a kill in between leaves a torn write."""
        view = memoryview(data)
        half = len(view) // 2
        self.tick("write")
        file.write(view[:half])
        file.flush()
        self.tick("torn write")
        file.write(view[half:])


class _CountedFile(io.RawIOBase):
    """The file under an Arrow writer, whose writes are counted."""

    def __init__(self, file: IO[bytes], killer: Killer) -> None:
        self._file = file
        self._killer = killer

    def write(self, data: Any) -> int:
        self._killer.write_all(self._file, memoryview(data).cast("B"))
        return len(data)

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell()

    def flush(self) -> None:
        if not self._file.closed:
            self._file.flush()


def started(work: Callable[[], object]) -> int:
    """Run `work` in a fork of this process; return its process id."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:  # noqa: BLE001  (a fork must never return into the caller's loop)
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def ended(pid: int) -> int:
    """Wait for a fork; return its exit status, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def forked(work: Callable[[], object]) -> int:
    """Run `work` in a fork of this process; return its exit status, negative for a signal."""
    return ended(started(work))


def build_noted(spec: BuildSpec, folder: Path, make_killer: Callable[[int], Killer]) -> None:
    """Build with a killer at work, made with a descriptor of FOLDER/operations."""
    note = os.open(folder / "operations", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    killer = make_killer(note)
    killer.install()
    killer.tick("start")
    with progress.listening(killer.listen):
        datasets.build(spec)


def build_and_hash(spec: BuildSpec, folder: Path) -> None:
    """Build, and note the hashes of all listed files in FOLDER/hashes; this process ends afterwards."""
    os.fsync = lambda fd: None  # no power fails, and the device is slow
    version = datasets.build(spec).version
    (folder / "hashes").write_text(json.dumps(datasets.listed_files(spec, version)))


def kill_before_every_operation(folder: Path) -> None:
    """Kill a build before its n-th operation, look at the store, resume, compare; for the n that `chosen` returns.

    Prints {"step", "operation", "problem"} for each n; `problem` is None where all is well.
    """
    sizes.MAX_FAN_IN = 4  # so that it merges runs
    spec, expected, operations = undisturbed(folder)
    for at in range(len(operations)) if FULL else chosen(operations):
        step, operation = operations[at]
        forget(spec, folder)
        problem = _kill_and_resume(spec, folder, at, expected)
        print(json.dumps({"step": step, "operation": operation, "problem": problem}), flush=True)


def chosen(operations: Sequence[Sequence[str]], num_kills: int = 20) -> list[int]:
    """Return the positions of `num_kills` operations: every step, every kind, the rest by a fixed seed."""
    positions, seen = [], set[str]()
    for at, names in enumerate(operations):
        if not seen.issuperset(names):
            positions.append(at)
            seen.update(names)
    others = sorted(set(range(len(operations))).difference(positions))
    return sorted(positions + random.Random(7).sample(others, num_kills - len(positions)))


def undisturbed(folder: Path) -> tuple[BuildSpec, str, list[list[str]]]:
    """Build twice; return the spec of FOLDER/spec.json, the hashes of all files, and [step, operation] of each."""
    spec = BuildSpec.model_validate_json((folder / "spec.json").read_text())
    for name in _IMPORTED_LATE:
        importlib.import_module(name)
    pa.array([0])  # imports pandas, where there is one
    gc.freeze()
    assert forked(lambda: build_and_hash(spec, folder)) == 0
    expected = (folder / "hashes").read_text()
    forget(spec, folder)
    assert forked(lambda: build_noted(spec, folder, lambda note: Killer(None, note))) == 0
    return spec, expected, [line.split(" ", 1) for line in (folder / "operations").read_text().splitlines()]


def forget(spec: BuildSpec, folder: Path) -> None:
    """Go back to before the first build."""
    shutil.rmtree(spec.store)
    (folder / "hashes").unlink(missing_ok=True)


def _kill_and_resume(spec: BuildSpec, folder: Path, at: int, expected: str) -> str | None:
    status = forked(lambda: build_noted(spec, folder, lambda note: Killer(at, note)))
    if status != -signal.SIGKILL:
        return f"was not killed: {status}"
    if problem := find_incomplete(Path(spec.store) / spec.dataset):
        return f"after the kill: {problem}"
    if (status := forked(lambda: build_and_hash(spec, folder))) != 0:
        return f"the resume failed: {status}"
    if (folder / "hashes").read_text() != expected:
        return "the resumed build has other bytes"
    return find_incomplete(Path(spec.store) / spec.dataset, must_be_visible=True)


def find_incomplete(dataset: Path, *, must_be_visible: bool = False) -> str | None:
    """Return what is visible but incomplete in a dataset's folder; None if nothing is.

    Reads plain files, so that it shares no mistake with the code under test.
    """
    manifests = list(dataset.glob("versions/*/manifest.json"))
    entries = [max(tag.glob("*.json")) for tag in dataset.glob("tags/*") if any(tag.glob("*.json"))]
    if must_be_visible and not (manifests and entries):
        return "nothing is visible"
    for manifest in manifests:
        value = json.loads(manifest.read_bytes())
        listed = dict(value["files"])
        for split in value["splits"].values():
            for entry in split["shards"]:
                listed[entry["name"]] = entry["sha256"]
                for suffix, file in entry["files"].items():
                    listed[entry["name"].removesuffix(".tok") + suffix] = file["sha256"]
        for name, expected in listed.items():
            path = manifest.parent / name
            if not path.is_file():
                return f"{path} is listed and missing"
            if hashlib.sha256(path.read_bytes()).hexdigest() != expected:
                return f"{path} is listed and has other bytes"
    for entry_path in entries:
        version = json.loads(entry_path.read_bytes())["version"]
        if not (dataset / "versions" / version / "manifest.json").is_file():
            return f"{entry_path} names a version that is not visible"
    return None


def run_build(folder: Path) -> None:
    """Build with two workers; note the time and name of each step, and the result's version."""
    spec = BuildSpec.model_validate_json((folder / "spec.json").read_text())
    note = os.open(folder / "steps", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note_step(step: str) -> None:
        os.write(note, f"{time.monotonic()} {step}\n".encode())

    def listen(event: progress.Event) -> None:
        if isinstance(event, progress.StepStarted):
            note_step(event.step)

    with progress.listening(listen):
        version = datasets.build(spec, num_workers=2).version
    note_step("done")
    (folder / "version").write_text(version)


if __name__ == "__main__":
    {"every": kill_before_every_operation, "run": run_build}[sys.argv[1]](Path(sys.argv[2]))
