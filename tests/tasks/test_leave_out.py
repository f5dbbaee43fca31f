"""`leave_out`: patterns exclude files that match the path of a source."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.builders.datasets import build, make_spec, write_jsonl
from tests.builders.refusals import assert_refused
from tests.servers.faulty_proxy import FaultyProxy
from tests.tasks.test_globs import put_all
from tokenloom.cli import main as cli
from tokenloom.errors import InputError, SpecError
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.tasks.sources.listing import LeaveOut, find_files, match

TREE = ["a.txt", "b.tmp", "2024/a.txt", "2024/old/a.txt", "2024/old/deep/b.txt", "old", "x/2024/c.txt", "~hidden.txt"]
PATTERNS: dict[str, list[str]] = {  # pattern -> what it leaves out
    "*.tmp": ["b.tmp"],
    "a.txt": ["2024/a.txt", "2024/old/a.txt", "a.txt"],
    "2024/*": ["2024/a.txt", "2024/old/a.txt", "2024/old/deep/b.txt"],
    "*2024/*": ["2024/a.txt", "2024/old/a.txt", "2024/old/deep/b.txt", "x/2024/c.txt"],
    "old": ["old"],
    "*/old/*": ["2024/old/a.txt", "2024/old/deep/b.txt"],
    "[ab].t?t": ["2024/a.txt", "2024/old/a.txt", "2024/old/deep/b.txt", "a.txt"],
    "~*": ["~hidden.txt"],
    "data/a.txt": [],
    "*/*": sorted(set(TREE) - {"a.txt", "b.tmp", "old", "~hidden.txt"}),
}


def names(pattern: str, *leave_out: str) -> list[str]:
    """Return the paths of the files that a pattern matches."""
    return [file.path for file in find_files(pattern, LeaveOut(leave_out))]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder of files in folders."""
    for name in TREE:
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text of {name}")
    return tmp_path / "data"


def spec_of(tree: Path, *leave_out: str, **source: Any) -> BuildSpec:
    """Return a spec of all files of a folder."""
    sources = [{"kind": "text", "path": f"{tree}/**/*", "name": "rows", "leave_out": list(leave_out), **source}]
    return make_spec(tree.parent / "store", sources)


def test_patterns_leave_out_names_and_paths(tree: Path, s3_url: str, s3_proxy: FaultyProxy) -> None:
    for root in (tree, put_all(s3_url, *TREE)):
        assert sorted(names(f"{root}/**/*")) == sorted(TREE)
        for pattern, wanted in PATTERNS.items():
            assert sorted(set(TREE) - set(names(f"{root}/**/*", pattern))) == sorted(wanted), pattern


def test_the_version_is_that_of_the_files_that_remain(tree: Path) -> None:
    left = build(spec_of(tree, "*/old/*", "*.tmp"))
    for name in ("b.tmp", "2024/old/a.txt", "2024/old/deep/b.txt"):
        (tree / name).unlink()
    (tree.parent / "store").rename(tree.parent / "before")
    again = build(spec_of(tree))
    assert again.version == left.version
    assert left.num_encoded == again.num_encoded == 5


def test_special_files_and_names_that_are_not_utf8_can_be_left_out(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", ["one"])
    (tmp_path / "gone.jsonl").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder.jsonl").mkdir()
    write_jsonl(tmp_path / os.fsdecode(b"b\xff.jsonl"), ["two"])
    pattern = f"{tmp_path}/*.jsonl"
    source = {"kind": "jsonl", "path": pattern}
    for left, refused in (([], "b\\udcff.jsonl"), (["b?.jsonl"], "folder.jsonl"), (["b?.*", "f*"], "gone.jsonl")):
        assert_refused(make_spec(tmp_path / "store", [source | {"leave_out": left}]), refused, "leave_out")
    assert names(pattern, "folder.jsonl", "gone.*", "b?.jsonl") == ["a.jsonl"]


def test_plan_counts_the_files_of_each_pattern_and_those_that_wildcards_pass_over(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tree.parent)
    for name in ("_SUCCESS", ".a.crc"):
        (tree / name).write_text("")
    Path("spec.yaml").write_text(
        "dataset: data\nstore: ./store\ntokenizer: {kind: byte}\n"
        'sources: [{kind: text, path: "data/**/*", leave_out: ["*/old/*", "b.tmp", "*.bak"]}]\n'
    )
    assert cli.main(["plan", "spec.yaml"]) == 0
    shown = capsys.readouterr().out
    assert "leave_out of text-0: 'b.tmp' leaves out 1 file\n" in shown
    assert "leave_out of text-0: '*.bak' matches no file of the source; check it" in shown
    assert "source text-0: its wildcards pass over 2 files" in shown
    assert cli.main(["plan", "spec.yaml", "--json"]) == 0
    counts = {"*/old/*": 2, "b.tmp": 1, "*.bak": 0, "_* and .*": 2}
    assert json.loads(capsys.readouterr().out)["left_out"] == {"text-0": counts}


@pytest.mark.parametrize("pattern", ["", " ", "# all", "!a.txt", "/", "/a.txt", "drafts/"])
def test_a_pattern_with_another_meaning_in_a_gitignore_file_is_refused(pattern: str, tree: Path) -> None:
    with pytest.raises((SpecError, ValueError), match=r"leave_out[^;]* is not a pattern of files; write"):
        spec_of(tree, pattern)


def test_no_pattern_backtracks(tmp_path: Path) -> None:
    # Matched by backtracking, each of these would take hours.
    stars, folders = "*-" * 60 + "*.tmp", "**/a*/" * 12 + "b"
    for pattern, path in ((stars, "-" * 200), (folders, "/".join(["a" * 20] * 100))):
        assert not LeaveOut([pattern]).excludes(path)
        (tmp_path / path).mkdir(parents=True)
        assert match(f"{tmp_path}/{pattern}")[1] == []


HIDDEN_TREE = ["a", "_a", ".a", "d/a", "_d/a", ".d/a", "d/_a", "d/.a", "d/_e/a", "_d/_e/a"]
MATCHES = {  # pattern -> what it matches, and how many files its wildcards pass over
    "*": (["a"], 2),
    "_*": (["_a"], 0),
    "*/*": (["d/a"], 4),
    "_d/*": (["a"], 0),
    "_*/*": (["_d/a"], 0),
    "**/a": (["a", "d/a"], 4),
    "**/_e/a": (["d/_e/a"], 1),
    "**": (["a", "d/a"], 8),
}


@pytest.mark.parametrize("pattern", MATCHES)
@pytest.mark.parametrize("place", ["local", "memory"])
def test_wildcards_pass_over_names_that_begin_with_an_underscore_or_a_dot(
    place: str, pattern: str, tmp_path: Path
) -> None:
    # As pyarrow, Hugging Face and the shell do: Spark writes _SUCCESS and .part.crc beside its files.
    root = str(tmp_path) if place == "local" else f"memory://{tmp_path}"
    filesystem = fsspec.filesystem("file" if place == "local" else "memory")
    for name in HIDDEN_TREE:
        filesystem.makedirs(f"{tmp_path}/{name}".rpartition("/")[0], exist_ok=True)
        filesystem.pipe(f"{tmp_path}/{name}", b"text")
    leave_out = LeaveOut()
    folder, found = match(f"{root}/{pattern}", leave_out)
    files = [name.removeprefix(folder) for name, info in found if info["type"] == "file"]
    assert (files, leave_out.num_hidden) == MATCHES[pattern]


def test_a_hidden_file_may_be_named_in_leave_out(tmp_path: Path) -> None:
    for name in ("a.txt", "_SUCCESS", ".a.crc"):
        (tmp_path / name).write_text("x")
    leave_out = LeaveOut(["_SUCCESS"])
    assert [file.path for file in find_files(f"{tmp_path}/*", leave_out)] == ["a.txt"]
    assert (leave_out.num_files, leave_out.num_hidden) == ({"_SUCCESS": 1}, 1)  # no warning that it matches nothing
    with pytest.raises(InputError, match="but 2 that leave_out leaves out and 1 below names that begin with _ or"):
        find_files(f"{tmp_path}/*", LeaveOut(["[!.]*"]))
