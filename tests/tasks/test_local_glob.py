"""Patterns of local files: what a plain walk matches, through links, and no folder left out in silence."""

from __future__ import annotations

import os
import random
from pathlib import Path

import fsspec
import pytest

from tests.support import count
from tokenloom.errors import InputError
from tokenloom.tasks.sources.files import find_files
from tokenloom.tasks.sources.local_glob import local_glob

_NAMES = ["a", "b", "ab", "a.txt", "b.txt", ".hidden", "[x]"]
_PARTS = ["*", "a*", "?", "[ab]", "[!a]*", "*.txt", "**", "a", "[[]x]"]


def make_tree(folder: Path, numbers: random.Random, depth: int = 0) -> None:
    """Make files and folders of few names."""
    for name in numbers.sample(_NAMES, numbers.randint(0, 4)):
        if depth < 3 and numbers.random() < 0.6:
            (folder / name).mkdir()
            make_tree(folder / name, numbers, depth + 1)
        else:
            (folder / name).write_text("x" * numbers.randint(0, 9))


@pytest.mark.parametrize("seed", range(count(12, 200)))
def test_without_links_it_is_what_fsspec_matches(tmp_path: Path, seed: int) -> None:
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
def test_a_folder_that_can_not_be_read_is_named(tmp_path: Path, pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_user_without_the_right_is_told(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everywhere")
    (tmp_path / "a").mkdir(mode=0)
    with pytest.raises(InputError, match="can't be read"):
        find_files(f"{tmp_path}/*/x.txt")
