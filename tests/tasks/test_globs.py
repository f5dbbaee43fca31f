"""Patterns of files match what fsspec matches; links are followed, and a listing that fails never hides files."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.counts import count
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.s3_server import BUCKET, put
from tokenloom.errors import InputError
from tokenloom.tasks.sources.listing import find_files, match

_ROOT = Path(__file__).parents[2]
_AS_ANOTHER_USER = """
import os, sys
from tokenloom.errors import InputError
from tokenloom.tasks.sources.listing import find_files
if os.geteuid() == 0:  # root can read everything
    os.seteuid(65534)
for pattern in sys.argv[1:]:
    try:
        print(*(file.url for file in find_files(pattern)))
    except InputError as error:
        print(error)
"""
_NAMES = ["a", "b", "ab", "a.txt", "b.txt", ".hidden", "[x]"]
_PARTS = ["*", "a*", "?", "[ab]", "[!a]*", "*.txt", "**", "a", "a.txt", "[[]x]"]


def make_tree(folder: Path, numbers: random.Random, depth: int = 0) -> None:
    """Make files and folders with a few different names."""
    for name in numbers.sample(_NAMES, numbers.randint(0, 4)):
        if depth < 3 and numbers.random() < 0.6:
            (folder / name).mkdir()
            make_tree(folder / name, numbers, depth + 1)
        else:
            (folder / name).write_text("x" * numbers.randint(0, 9))


def test_links_are_followed_and_loops_end(tmp_path: Path) -> None:
    for name in ("data/real", "elsewhere/deep"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "x.txt").write_text("x")
    (tmp_path / "data" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "up").symlink_to(tmp_path / "elsewhere")
    found = [file.path for file in find_files(f"{tmp_path}/data/**/*.txt")]
    assert found == ["link/deep/x.txt", "real/x.txt"]
    (tmp_path / "data" / "self").symlink_to(tmp_path / "data")
    found = [file.path for file in find_files(f"{tmp_path}/data/**/*/x.txt")]
    assert found == ["link/deep/x.txt", "real/x.txt"]
    assert [file.path for file in find_files(f"{tmp_path}/data/*/*.txt")] == ["real/x.txt"]
    assert [file.path for file in find_files(f"{tmp_path}/data/*/deep/x.txt")] == ["link/deep/x.txt"]


def test_a_folder_that_this_user_cannot_read_or_enter_is_named() -> None:
    with tempfile.TemporaryDirectory() as name:  # other users can enter it
        Path(name).chmod(0o755)
        for part, mode in {"a": 0o755, "b": 0, "c/d": 0o444}.items():
            (folder := Path(name, part)).mkdir(parents=True)
            (folder / "x.txt").write_text("x")
            folder.chmod(mode)
        patterns = {"a/*.txt": None, "[a]/x.txt": None, "*/x.txt": "b", "b/x*/y": "b", "c/**/*.txt": "c/d/x.txt"}
        command = [sys.executable, "-c", _AS_ANOTHER_USER, *(f"{name}/{pattern}" for pattern in patterns)]
        lines = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
        for refused, line in zip(patterns.values(), lines, strict=True):
            wanted = f"{name}/{refused}: can't be read: Permission denied" if refused else f"{name}/a/x.txt"
            assert line.startswith(wanted)
        for part in ("b", "c/d"):
            Path(name, part).chmod(0o755)


def test_runs_of_slashes_are_one(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.txt").write_text("x")
    for pattern in (f"{tmp_path}///a//*.txt", f"/{tmp_path}//a/x.txt", f"file:///{tmp_path}/a/*"):
        (found,) = find_files(pattern)
        assert (found.path, found.url) == ("x.txt", f"{tmp_path}/a/x.txt")


_FINDING = """
import sys
from tokenloom.tasks.sources.listing import find_files

print(*(file.path for pattern in sys.argv[1:] for file in find_files(pattern)))
print(*{"asyncio", "fsspec"} & set(sys.modules))
"""


def test_local_files_are_found_without_what_remote_ones_need(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    command = [sys.executable, "-c", _FINDING, f"{tmp_path}/*.txt", f"{tmp_path}/a.txt"]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["a.txt a.txt", ""]


def test_a_single_file_that_cannot_be_found_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken").symlink_to(tmp_path / "none")
    for name in ("none", "broken"):
        with pytest.raises(InputError, match=rf"{name}: no such file; check the path$"):
            find_files(f"{tmp_path}/{name}")


# Remote files


def names_of(pattern: str) -> list[str]:
    """Return the paths of the files that a pattern matches."""
    return [file.path for file in find_files(pattern)]


def put_all(s3_url: str, *names: str) -> str:
    """Write objects of a few bytes below a fresh key; return its URL."""
    key = uuid.uuid4().hex
    for name in names:
        put(s3_url, f"{key}/{name}", b"" if name.endswith("/") else b"{}\n")
    return f"s3://{BUCKET}/{key}"


@pytest.mark.parametrize("pattern", ["*/*.jsonl", "**/*.jsonl", "a/*.jsonl", "a/x*"])
def test_a_page_that_fails_is_retried_or_reported(s3_url: str, s3_proxy: FaultyProxy, pattern: str) -> None:
    root, s3_proxy.page = put_all(s3_url, *(f"a/x{i}.jsonl" for i in range(5))), 2
    s3_proxy.plan_listings("continuation-token", "ok", "503")
    assert len(names_of(f"{root}/{pattern}")) == 5
    for fault, message in [("503", "did not answer correctly, although"), ("403", "no permission to read it")]:
        s3_proxy.plan_listings("continuation-token", always=fault)
        with pytest.raises(InputError, match=message) as raised:
            find_files(f"{root}/{pattern}")
        assert str(raised.value).startswith(f"{root}/{pattern}: ")


@pytest.mark.usefixtures("s3_proxy")
@pytest.mark.parametrize("seed", range(count(4, 60)))
def test_patterns_match_what_fsspec_matches(tmp_path: Path, s3_url: str, seed: int) -> None:
    numbers = random.Random(seed)
    make_tree(tmp_path, numbers)
    names = [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*")) if path.is_file()]
    root = put_all(s3_url, *names, "a b/", "a/b/", "new/z.txt")
    systems = {root: fsspec.filesystem("s3", use_listings_cache=False), "memory://tree": fsspec.filesystem("memory")}
    systems["memory://tree"].store.clear()
    for name in names:
        systems["memory://tree"].pipe(f"/tree/{name}", b"{}\n")
    for _ in range(12):
        pattern = "/".join([*numbers.choices(_PARTS, k=numbers.randint(0, 3)), numbers.choice(_PARTS[:7])])
        for url, system in {**systems, str(tmp_path): fsspec.filesystem("file")}.items():
            expected = system.glob(f"{url}/{pattern}", detail=True)
            wanted = [item for item in expected.items() if not item[0].endswith("/")]
            assert shown(match(f"{url}/{pattern}")[1], pattern) == shown(wanted, pattern)


def shown(found: Iterable[tuple[str, dict[str, Any]]], pattern: str) -> list[tuple[str, str]]:
    """Return the name and type of each match that is not hidden; without folders below **, which mean their files."""
    return [
        (name.rstrip("/"), info["type"])
        for name, info in found
        if "/." not in name and not (pattern.endswith("**") and info["type"] == "directory")
    ]


@pytest.mark.usefixtures("s3_proxy")
def test_an_object_that_is_named_as_a_folder_is_not_lost(s3_url: str) -> None:
    root = put_all(s3_url, "a", "a/x.txt", "b//y.txt", "c/", "d/e/")
    assert names_of(f"{root}/*") == ["a"]
    assert names_of(f"{root}/**") == ["a", "a/x.txt", "b//y.txt"]
    assert names_of(f"{root}/b//y*") == ["y.txt"]
    assert names_of(f"{root}/**/*.txt") == ["a/x.txt", "b//y.txt"]
    with pytest.raises(InputError, match=rf"{root}/a: a folder"):
        find_files(f"{root}/a*")
    put(s3_url, f"{root.removeprefix(f's3://{BUCKET}/')}/a", b"")  # an empty object represents the folder
    assert names_of(f"{root}/**") == ["a/x.txt", "b//y.txt"]


@pytest.mark.usefixtures("s3_proxy")
@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("s3://corp*/a.txt", "give each bucket a source of its own"),
        ("s3://*/a.txt", "give each bucket a source of its own"),
        ("s3://corpora", "a folder"),
        ("memory://nothing/*/*.txt", "no file matches"),
        ("memory://nothing/a**", r"\*\* must be a whole part of the path"),
    ],
)
def test_a_pattern_that_can_not_match_is_reported(pattern: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        find_files(pattern)
    assert str(raised.value).startswith(pattern.partition("**")[0])


def test_a_folder_that_other_file_systems_can_not_list_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    system = fsspec.filesystem("memory")
    for name in ("a/x.txt", "b/c/x.txt", "b/x.txt"):
        system.pipe(f"/refused/{name}", b"x")
    real = type(system).ls

    def ls(self: Any, path: str, detail: bool = True, **options: Any) -> Any:
        if path.rstrip("/").endswith("refused/b"):
            raise PermissionError(13, "Permission denied", path)
        return real(self, path, detail, **options)

    monkeypatch.setattr(type(system), "ls", ls)
    for pattern in ("*/x.txt", "**/x.txt", "**", "*/*/x.txt", "b/*"):
        with pytest.raises(InputError, match=r"memory:///refused/b/?: can't be read: Permission denied"):
            match(f"memory://refused/{pattern}")
    assert [name for name, _ in match("memory://refused/[!b]/*.txt")[1]] == ["/refused/a/x.txt"]
