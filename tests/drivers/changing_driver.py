"""Builds whose outside files change while they run, and which are killed or fail; test_changing_files.py starts them.

    python -m tests.drivers.changing_driver FOLDER NUM_KILLS NUM_FAULTS

Reads FOLDER/spec.json and the variants of each outside file, FOLDER/variants/0/NAME and 1/NAME. Before the rounds, each
combination of variants is built alone: a version has the bytes of its combination, or is wrong. In a round, files
change before random disk operations of a build, perhaps to and fro, and the process is killed before another operation
or the disk fails from there on. Then the files get any variants, and a build must publish the version of that
combination. Work files stay from round to round. Prints one JSON object a round.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import shutil
import sys
from pathlib import Path

from tests.builders import datasets
from tests.drivers.enospc_driver import FAILING
from tests.drivers.kill_driver import Killer, build_noted, find_incomplete, forked, undisturbed
from tokenloom.errors import TokenloomError
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.tasks.running import steps

Combination = tuple[int, ...]
_FRESH_SHARE = 0.1  # of rounds that begin without work files
_UNPUBLISHED_SHARE = 0.8  # of rounds that begin without versions


class OutsideFiles:
    """The files that a spec names, in one variant each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.names = sorted(path.name for path in (folder / "variants" / "0").iterdir())
        self._contents = [[(folder / f"variants/{i}/{name}").read_bytes() for i in (0, 1)] for name in self.names]

    def combinations(self) -> list[Combination]:
        """Return all combinations of variants."""
        return list(itertools.product((0, 1), repeat=len(self.names)))

    def put(self, combination: Combination) -> None:
        """Give each file its variant, as new files."""
        for index, variant in enumerate(combination):
            self.change(index, variant, in_place=False)

    def change(self, index: int, variant: int, *, in_place: bool) -> None:
        """Change one file: with a new inode, or in place with its old times."""
        path = self._folder / "files" / self.names[index]
        data = self._contents[index][variant]
        if in_place and path.exists():
            before = path.stat()
            path.write_bytes(data)
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
            return
        new = path.with_name(f"{path.name}.new")
        new.write_bytes(data)
        os.rename(new, path)


class Disturber(Killer):
    """Changes files before chosen operations, and kills the process or lets the disk fail from operation `at` on.

    Args:
        at: the operation to die or fail from.
        note: see Killer.
        files: the files to change.
        changes: {operation: (index of a file, variant, whether in place)}.
        number: the errno of a failing disk; None to kill.
    """

    def __init__(
        self,
        at: int,
        note: int,
        files: OutsideFiles,
        changes: dict[int, tuple[int, int, bool]],
        number: int | None,
    ) -> None:
        super().__init__(at, note)
        self._files = files
        self._changes = changes
        self._number = number
        self._is_changing = False

    def tick(self, operation: str) -> None:
        """Change what is due before an operation."""
        if self._is_changing:  # the change itself writes
            return
        if change := self._changes.pop(self._count, None):
            index, variant, in_place = change
            self._is_changing = True
            self._files.change(index, variant, in_place=in_place)
            self._is_changing = False
        super().tick(operation)

    def strike(self, operation: str) -> None:
        """Die, or fail if the operation needs the disk."""
        if self._number is None:
            super().strike(operation)
        elif operation in FAILING:
            raise OSError(self._number, os.strerror(self._number))


def _build_alone(spec: BuildSpec, result: Path) -> None:
    version = datasets.build(spec).version
    result.write_text(json.dumps([version, datasets.listed_files(spec, version)]))


def _built(spec: BuildSpec, folder: Path) -> tuple[str, dict[str, str]] | None:
    """Build in a fork; return the version and the hashes of its files, None if the build failed."""
    result = folder / "result"
    result.unlink(missing_ok=True)
    if forked(lambda: _build_alone(spec, result)) != 0:
        return None
    version, hashes = json.loads(result.read_text())
    return version, hashes


def _disturbed(spec: BuildSpec, folder: Path, disturber: Disturber) -> None:
    try:
        build_noted(spec, folder, lambda note: disturber)
    except TokenloomError as error:
        os._exit(error.exit_code)


def _wrong_version(spec: BuildSpec, right: dict[str, dict[str, str]]) -> str | None:
    """Return which visible version is incomplete, or is not one of a build alone; None if all are right."""
    dataset = Path(spec.store) / spec.dataset
    if problem := find_incomplete(dataset):
        return problem
    for manifest in dataset.glob("versions/*/manifest.json"):
        version = manifest.parent.name
        if version not in right:
            return f"{version} is of no combination of files"
        if datasets.listed_files(spec, version) != right[version]:
            return f"{version} has other bytes than that of a build alone"
    return None


def _forget_some(spec: BuildSpec, generator: random.Random) -> None:
    dataset = Path(spec.store) / spec.dataset
    if generator.random() < _FRESH_SHARE:
        shutil.rmtree(dataset, ignore_errors=True)
    elif generator.random() < _UNPUBLISHED_SHARE:
        shutil.rmtree(dataset / "versions", ignore_errors=True)
        shutil.rmtree(dataset / "tags", ignore_errors=True)


def run_rounds(folder: Path, num_kills: int, num_faults: int) -> None:
    """Print {"end", "changed", "problem"} for each round; `problem` is None where all is well."""
    setattr(steps, "RETRY_SECONDS", ())  # noqa: B010  (an EIO can be transient, and is retried)
    files = OutsideFiles(folder)
    combinations = files.combinations()
    (folder / "files").mkdir()
    files.put(combinations[0])
    spec, _, operations = undisturbed(folder)
    expected: dict[Combination, str] = {}
    right: dict[str, dict[str, str]] = {}
    for combination in combinations:
        shutil.rmtree(spec.store, ignore_errors=True)
        files.put(combination)
        built = _built(spec, folder)
        assert built is not None, combination
        expected[combination], right[built[0]] = built
    assert len(right) == len(combinations)  # each variant makes another version
    for number in range(num_kills + num_faults):
        generator = random.Random(number)
        _forget_some(spec, generator)
        before = generator.choice(combinations)
        files.put(before)
        changes = _chosen_changes(generator, before, len(operations))
        failure = None if number < num_kills else generator.choice((errno.ENOSPC, errno.EIO))
        end = generator.randrange(len(operations) + 10)  # perhaps after the last
        disturber = Disturber(end, os.open(folder / "operations", os.O_WRONLY | os.O_CREAT), files, changes, failure)
        forked(lambda disturber=disturber: _disturbed(spec, folder, disturber))  # type: ignore[misc]
        problem = _wrong_version(spec, right)
        after = before if generator.random() < 0.5 else generator.choice(combinations)
        files.put(after)
        built = None if problem else _built(spec, folder)
        if not problem:
            problem = "the next build failed" if built is None else _wrong_version(spec, right)
        if built and built[0] != expected[after]:
            problem = f"the next build gave {built[0]}, not {expected[after]}"
        outcome = {
            "end": "kill" if failure is None else os.strerror(failure),
            "changed": sorted({files.names[index] for index, *_ in changes.values()}),
            "problem": f"round {number}: {problem}" if problem else None,
        }
        print(json.dumps(outcome), flush=True)


def _chosen_changes(
    generator: random.Random, before: Combination, num_operations: int
) -> dict[int, tuple[int, int, bool]]:
    """Return a change of one or two files at random operations, each perhaps taken back at a later one."""
    changes: dict[int, tuple[int, int, bool]] = {}
    for _ in range(generator.choice((1, 1, 2))):
        index = generator.randrange(len(before))
        first, second = sorted(generator.sample(range(num_operations), 2))
        in_place = generator.random() < 0.5
        changes[first] = index, 1 - before[index], in_place
        if generator.random() < 0.6:
            changes[second] = index, before[index], in_place
    return changes


if __name__ == "__main__":
    run_rounds(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
