"""Patterns of local files: links are followed, and no folder is silently skipped."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from tests.counts import count
from tokenloom.errors import InputError
from tokenloom.tasks.sources.files.finding import find_files
from tokenloom.tasks.sources.files.local_glob import local_glob

_ROOT = Path(__file__).parents[2]
_AS_ANOTHER_USER = """
import os, sys
from tokenloom.errors import InputError
from tokenloom.tasks.sources.files.finding import find_files
if os.geteuid() == 0:  # root can read everything
    os.seteuid(65534)
for pattern in sys.argv[1:]:
    try:
        print(*(file.url for file in find_files(pattern)))
    except InputError as error:
        print(error)
"""
_NAMES = ["a", "b", "ab", "a.txt", "b.txt", ".hidden", "[x]"]
_PARTS = ["*", "a*", "?", "[ab]", "[!a]*", "*.txt", "**", "a", "[[]x]"]


def make_tree(folder: Path, numbers: random.Random, depth: int = 0) -> None:
    """Make files and folders with a few different names."""
    for name in numbers.sample(_NAMES, numbers.randint(0, 4)):
        if depth < 3 and numbers.random() < 0.6:
            (folder / name).mkdir()
            make_tree(folder / name, numbers, depth + 1)
        else:
            (folder / name).write_text("x" * numbers.randint(0, 9))


@pytest.mark.parametrize("seed", range(count(12, 200)))
def test_without_links_it_matches_what_fsspec_matches(tmp_path: Path, seed: int) -> None:
    numbers = random.Random(seed)
    make_tree(tmp_path, numbers)
    system = fsspec.filesystem("file")
    for _ in range(20):
        parts = [numbers.choice(_PARTS) for _ in range(numbers.randint(1, 4))]
        pattern = "/".join([str(tmp_path), *parts])
        expected = {name: info for name, info in system.glob(pattern, detail=True).items() if name != str(tmp_path)}
        found = dict(local_glob(pattern))
        found.pop(str(tmp_path), None)
        assert found.keys() == {name.rstrip("/") for name in expected}
        files = {name: info["size"] for name, info in expected.items() if info["type"] == "file"}
        assert {name: info["size"] for name, info in found.items() if info["type"] == "file"} == files


def test_links_are_followed_and_loops_end(tmp_path: Path) -> None:
    for name in ("data/real", "elsewhere/deep"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "x.txt").write_text("x")
    (tmp_path / "data" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "up").symlink_to(tmp_path / "elsewhere")
    found = [file.path for file in find_files(f"{tmp_path}/data/**/*.txt")]
    assert found == ["link/deep/x.txt", "real/x.txt"]
    assert [file.path for file in find_files(f"{tmp_path}/data/*/*.txt")] == ["real/x.txt"]
    assert [file.path for file in find_files(f"{tmp_path}/data/*/deep/x.txt")] == ["link/deep/x.txt"]


@pytest.mark.parametrize("pattern", ["*/x.txt", "**/*.txt", "*/*.txt", "*/c/x.txt"])
def test_an_unreadable_folder_is_reported(tmp_path: Path, pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "b/c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.txt").write_text("x")
    listdir, stat = os.listdir, os.stat

    def refused(path: object) -> bool:
        return os.fspath(str(path)).startswith(f"{tmp_path}/b/") or str(path) == f"{tmp_path}/b"

    def no_listdir(path: str) -> list[str]:
        if refused(path):
            raise PermissionError(13, "Permission denied", path)
        return listdir(path)

    def no_stat(path: str, **options: object) -> os.stat_result:
        if str(path).startswith(f"{tmp_path}/b/"):
            raise PermissionError(13, "Permission denied", path)
        return stat(path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "listdir", no_listdir)
    monkeypatch.setattr(os, "stat", no_stat)
    with pytest.raises(InputError, match=rf"{tmp_path}/b\S*: can't be read: Permission denied"):
        find_files(f"{tmp_path}/{pattern}")


@pytest.fixture
def tree() -> Iterator[Path]:
    """A folder that other users can enter: a/x.txt, and b, c, d/e with an inaccessible file in each."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        for part in ("a", "b", "c", "d/e"):
            (folder / part).mkdir(parents=True)
            (folder / part / "x.txt").write_text("x")
        modes = {"b": 0, "c": 0o444, "d/e": 0o444}  # apply to the owner, too
        for part, mode in modes.items():
            (folder / part).chmod(mode)
        yield folder
        for part in modes:
            (folder / part).chmod(0o755)


def test_a_folder_that_this_user_cannot_read_or_enter_is_named(tree: Path) -> None:
    patterns = {
        "a/*.txt": None,
        "[a]/x.txt": None,
        "*/x.txt": "b/x.txt",
        "b/*.txt": "b",
        "b/x*/y": "b",
        "c/*.txt": "c/x.txt",
        "c/x*/y.txt": "c/x.txt",
        "d/**/*.txt": "d/e/x.txt",
        "d/*/x.txt": "d/e/x.txt",
    }
    command = [sys.executable, "-c", _AS_ANOTHER_USER, *(f"{tree}/{pattern}" for pattern in patterns)]
    lines = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    for name, line in zip(patterns.values(), lines, strict=True):
        assert line.startswith(f"{tree}/{name}: can't be read: Permission denied" if name else f"{tree}/a/x.txt")


def test_runs_of_slashes_are_one(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.txt").write_text("x")
    for pattern in (
        f"{tmp_path}//a/*.txt",
        f"{tmp_path}///a//*.txt",
        f"/{tmp_path}//a/x.txt",
        f"file:///{tmp_path}/a/*",
    ):
        (found,) = find_files(pattern)
        assert (found.path, found.url) == ("x.txt", f"{tmp_path}/a/x.txt")
    assert [file.path for file in find_files(f"{tmp_path}//*//*.txt")] == ["a/x.txt"]


_FINDING = """
import sys
from tokenloom.tasks.sources.files.finding import find_files

print(*(file.path for pattern in sys.argv[1:] for file in find_files(pattern)))
print(*{"asyncio", "fsspec"} & set(sys.modules))
"""


def test_local_files_are_found_without_what_remote_ones_need(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    command = [sys.executable, "-c", _FINDING, f"{tmp_path}/*.txt", f"{tmp_path}/a.txt"]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["a.txt a.txt", ""]


def test_a_single_file_that_cannot_be_found_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "broken").symlink_to(tmp_path / "none")
    for name in ("none", "broken"):
        with pytest.raises(InputError, match=rf"{name}: no such file; check the path$"):
            find_files(f"{tmp_path}/{name}")
    with pytest.raises(InputError, match=r"a\.txt/b: can't be read: Not a directory; check the file$"):
        find_files(f"{tmp_path}/a.txt/b")
