"""Builds, exports, moves of tags and runs of gc that are killed at random moments, as a separate program.

    python -m tests.drivers.command_kill_driver FOLDER STORE NUMBER

Reads FOLDER/spec.json. Each command forks from a process that has imported all, is killed three times, and then
runs to its end. After each: whatever is visible is complete and has the bytes of a build that nothing
disturbed, and nothing is lost that was tagged or younger than the grace. An export shows nothing half done, and ends
with the files of one that nothing disturbed. Prints {"killed": {...}, "problems": [...]}.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import s3fs  # noqa: F401  (a fork would import it each time)

import tokenloom.cli.commands.build
import tokenloom.cli.commands.versions
import tokenloom.flows.export_steps
import tokenloom.tasks.exporting.streams
import tokenloom.tasks.sources.records  # noqa: F401  (the same)
from tests.builders import datasets
from tests.builders.exported import small_parts
from tests.drivers.kill_driver import find_incomplete, forked
from tests.servers.s3_server import download
from tokenloom.cli.main import main
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.tasks.exporting.export import BEGUN

_OLD_SECONDS = 20 * 24 * 3600.0  # more than the grace of gc
_SEEDS = 4  # so many versions
_FORMATS = ("datatrove", "mds", "huggingface", "megatron")
Files = dict[str, bytes]


class _Kills:
    """Commands on one dataset, and what was wrong after them.

    Args:
        folder: for the builds that nothing disturbs, and for copies.
        spec: of the dataset.
        store: a folder, or the URL of an empty one in the bucket of tests.
    """

    def __init__(self, folder: Path, spec: BuildSpec, store: str) -> None:
        self._folder, self._spec = folder, spec.model_copy(update={"store": store})
        self._dataset, self._is_local = f"{store}/{spec.dataset}", "://" not in store
        self.manifests: Files = {}  # of builds that nothing disturbed, by version
        self._seconds: dict[str, float] = {}
        self.killed: Counter[str] = Counter()
        self.problems: list[str] = []
        clean = spec.model_copy(update={"store": str(folder / "clean")})
        for seed in range(_SEEDS):
            assert _status_of(lambda seed=seed: datasets.build(clean.model_copy(update={"seed": seed}))) == 0  # type: ignore[misc]
        for path in (folder / "clean").glob("*/versions/*/manifest.json"):
            self.manifests[path.parent.name] = path.read_bytes()

    def run(self, number: int) -> None:
        """Kill so many commands."""
        self._finish("build", lambda: self._build(0))
        while self.killed.total() < number:
            seed, version = random.randrange(_SEEDS), random.choice(sorted(self._visible()))
            wanted = random.choice(_FORMATS)
            export = f"{self._dataset}-{version}-{wanted}"
            commands: dict[str, Callable[[], object]] = {
                "build": lambda seed=seed: self._build(seed),  # type: ignore[misc]
                "export": lambda to=export, of=version, name=wanted: self._export(of, name, to),  # type: ignore[misc]
                "tag": lambda name=version: _command("tag", f"{self._dataset}@{name}", "prod"),  # type: ignore[misc]
                "young gc": lambda: _command("gc", self._dataset, "--keep-last", "0", "--delete"),
                "gc": lambda: self._collect(_OLD_SECONDS),
            }
            name = random.choice([*commands, "gc"]) if self.killed else "export"
            keeps_all = name != "gc"
            whole = self._undisturbed(version, wanted) if name == "export" else {}
            for _ in range(3):
                self.killed[name] += self._kill(name, commands[name], keeps_all=keeps_all)
                self._look_at_export(export, whole, has_ended=False)
            self._finish(name, commands[name], keeps_all=keeps_all)
            self._look_at_export(export, whole, has_ended=True)

    def _build(self, seed: int) -> None:
        datasets.build(self._spec.model_copy(update={"seed": seed}))

    def _export(self, version: str, name: str, to: str) -> None:
        _command("export", f"{self._dataset}@{version}", name, to, "--workers", "0")

    def _undisturbed(self, version: str, name: str) -> Files:
        """Return the files of an export that nothing disturbs."""
        to = str(self._folder / f"whole-{version}-{name}")
        if not Path(to).exists():
            assert _status_of(lambda: self._export(version, name, to)) == 0
        return _files(Path(to))

    def _look_at_export(self, to: str, whole: Files, *, has_ended: bool) -> None:
        """Note which visible files of an export are not complete; on an object store they appear one by one."""
        if not whole:  # another command ran
            return
        with self._copy(to) as folder:
            found = {name: data for name, data in _files(folder).items() if not name.startswith(("work/", BEGUN))}
        if found != whole if has_ended or (self._is_local and found) else not found.items() <= whole.items():
            self.problems.append(f"{to}: half an export is visible: {sorted(found)}")

    def _collect(self, seconds: float) -> None:
        """Run gc so many seconds later."""
        now = time.time
        time.time = lambda: now() + seconds
        _command("gc", self._dataset, "--keep-last", "1", "--delete")

    def _finish(self, name: str, command: Callable[[], object], *, keeps_all: bool = True) -> None:
        """Run a command to its end, and measure it."""
        begin = time.monotonic()
        with self._looking(f"{name}, finished", keeps_all=keeps_all):
            if status := _status_of(command):
                self.problems.append(f"{name}: it does not finish: {status}")
        self._seconds[name] = min(self._seconds.get(name, 60.0), time.monotonic() - begin)

    def _kill(self, name: str, command: Callable[[], object], *, keeps_all: bool) -> bool:
        """Kill a command at a random moment; return whether it was before its end."""
        with self._looking(f"{name}, killed", keeps_all=keeps_all):
            return _ended_by_a_kill(command, random.uniform(0, 1.2 * self._seconds.get(name, 0.5)))

    @contextmanager
    def _looking(self, name: str, *, keeps_all: bool) -> Iterator[None]:
        """Note what is wrong in the store after the block.

        Args:
            name: of the command that the block runs.
            keeps_all: no version may go; else none that a tag names, which find_incomplete finds.
        """
        kept = self._visible() if keeps_all else set()
        yield
        with self._copy() as dataset:
            if problem := find_incomplete(dataset):
                self.problems.append(f"{name}: {problem}")
            found = {path.parent.name: path.read_bytes() for path in dataset.glob("versions/*/manifest.json")}
        self.problems += [f"{name}: {v} has other bytes" for v in found if found[v] != self.manifests[v]]
        self.problems += [f"{name}: {version} is lost" for version in kept - found.keys()]

    @contextmanager
    def _copy(self, place: str = "") -> Iterator[Path]:
        """The folder at a place, that of the dataset if none is named, or a copy of one in the bucket."""
        place = place or self._dataset
        if self._is_local:
            yield Path(place)
            return
        with tempfile.TemporaryDirectory() as name:
            key = place.partition("://")[2].partition("/")[2]
            download(os.environ["AWS_ENDPOINT_URL"], key, Path(name))
            yield Path(name)

    def _visible(self) -> set[str]:
        with self._copy() as dataset:
            return {path.parent.name for path in dataset.glob("versions/*/manifest.json")}


def _files(folder: Path) -> Files:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _command(*arguments: str) -> None:
    with redirect_stdout(sys.stderr):
        if status := main(list(arguments)):
            raise SystemExit(status)


def _status_of(command: Callable[[], object]) -> int:
    """Run a command to its end in a fork; return its exit status."""

    def run() -> None:
        command()

    return forked(run)


def _start(command: Callable[[], object]) -> int:
    """Run a command in a fork; return its process id."""
    if child := os.fork():
        return child
    with Path(os.devnull).open("w") as nothing, redirect_stderr(nothing):
        try:
            command()
        finally:
            os._exit(0)


def _ended_by_a_kill(command: Callable[[], object], seconds: float) -> bool:
    child = _start(command)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    random.seed(5)
    small_parts(pytest.MonkeyPatch())
    place = Path(sys.argv[1])
    kills = _Kills(place, BuildSpec.model_validate_json((place / "spec.json").read_text()), sys.argv[2])
    kills.run(int(sys.argv[3]))
    shutil.rmtree(place / "clean")
    print(json.dumps({"killed": kills.killed, "problems": kills.problems}))
