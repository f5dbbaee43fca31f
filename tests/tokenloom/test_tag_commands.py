"""`tokenloom tag`, `rollback` and `log`, and what `ls` says of each version; builds respect what a person moved."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.builders.commands import run_json
from tests.builders.datasets import build, local_store, make_spec, write_jsonl
from tests.builders.manifests import empty_manifest
from tokenloom.cli.main import main
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.formats.records import sign
from tokenloom.storage.stores.local import LocalStore
from tokenloom.storage.versions import tag_moves, tags


class Project:
    """A dataset whose input grows; commands run in this process."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys
        self.dataset = f"{folder}/store/data"
        self.num_texts = 0

    def spec(self, **fields: Any) -> BuildSpec:
        path = self.folder / "a.jsonl"
        return make_spec(self.folder / "store", [{"kind": "jsonl", "path": str(path)}], **fields)

    def build(self, num_new: int = 1, **fields: Any) -> str:
        """Add texts and build; return the version."""
        self.num_texts += num_new
        write_jsonl(self.folder / "a.jsonl", [f"text {i}" for i in range(self.num_texts)])
        return build(self.spec(**fields)).version

    @property
    def store(self) -> LocalStore:
        return local_store(f"{self.folder}/store", "data")

    def latest(self) -> str:
        entry = tags.newest(self.store, "latest")
        assert entry
        return entry.version

    def json(self, *arguments: str) -> dict[str, Any]:
        return run_json(self.capsys, *arguments)

    def shown(self, *arguments: str) -> str:
        assert main([*arguments]) == 0
        return self.capsys.readouterr().out

    def refused(self, code: int, *arguments: str) -> str:
        """Return the message of a command that fails and moves nothing."""
        before = {tag: self.store.names(f"tags/{tag}") for tag in self.store.names("tags")}
        assert main(list(arguments)) == code
        assert {tag: self.store.names(f"tags/{tag}") for tag in self.store.names("tags")} == before
        return self.capsys.readouterr().err


@pytest.fixture
def project(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Project:
    return Project(tmp_path, capsys)


# ---- tag


def test_a_tag_names_a_version_and_is_moved_once(project: Project) -> None:
    first, second = project.build(), project.build()
    found = project.json("tag", f"{project.dataset}@{first}", "prod", "--reason", "the évaluation passed")
    assert (found["moved"], found["version"], found["previous"], found["number"]) == (True, first, None, 1)
    assert (found["tag"], found["reason"], found["reference"]) == (
        "prod",
        "the évaluation passed",
        f"{project.dataset}@{first}",
    )
    assert project.json("tag", f"{project.dataset}@prod", "prod")["moved"] is False
    assert "prod already names" in project.shown("tag", f"{project.dataset}@prod", "prod")
    assert len(tags.log(project.store, "prod")) == 1
    moved = project.json("tag", project.dataset, "prod")
    assert (moved["version"], moved["previous"], moved["number"], moved["reason"]) == (second, first, 2, "tag")
    assert project.json("inspect", f"{project.dataset}@prod")["version"] == second


def test_what_must_not_be_tagged_or_does_not_exist_is_refused(project: Project) -> None:
    project.build()
    data = project.dataset
    refused: list[tuple[list[str], int, str]] = [
        (["tag", data, "0123456789abcdef"], 2, "'0123456789abcdef' is not a valid tag"),
        (["tag", data, "../../latest"], 2, "'../../latest' is not a valid tag"),
        (["tag", data, "prod", "--reason", "build"], 2, "marks the moves of builds"),
        (["tag", data, "prod", "--reason", "a\nb"], 2, "is not one line of text"),
        (["tag", f"{data}@0123456789abcdef", "prod"], 1, "no version 0123456789abcdef"),
        (["tag", f"{data}@nightly", "prod"], 1, "no tag 'nightly'; tags: latest"),
        (["rollback", f"{data}@latest"], 2, "name the dataset without @; --tag names the tag"),
        (["rollback", data, "--tag", "prod"], 1, "no tag 'prod'; tags: latest"),
        (["log", data, "--tag", "prod"], 1, "no tag 'prod'; tags: latest"),
        (["log", f"{data}x"], 1, "no dataset 'datax'"),
    ]
    for arguments, code, message in refused:
        assert message in project.refused(code, *arguments)


def test_no_tag_names_a_version_that_is_damaged_or_not_complete(project: Project) -> None:
    first, second = project.build(), project.build()
    shard = project.store.local(f"versions/{first}/train/000000.tok")
    shard.write_bytes(shard.read_bytes()[:-1])
    for command in (["tag", f"{project.dataset}@{first}", "prod"], ["rollback", project.dataset]):
        assert f"versions/{first}/train/000000.tok: missing from a published version, or cut short" in project.refused(
            1, *command
        )
    manifest = project.store.local(f"versions/{first}/manifest.json")
    manifest.write_bytes(manifest.read_bytes()[:-1])
    assert "the file is damaged or incomplete" in project.refused(1, "tag", f"{project.dataset}@{first}", "prod")
    manifest.unlink()
    assert f"no version {first}" in project.refused(1, "tag", f"{project.dataset}@{first}", "prod")
    assert f"it named {first} before, which is no longer published" in project.refused(1, "rollback", project.dataset)
    assert project.latest() == second


def test_latest_names_a_tryout_only_on_request(project: Project) -> None:
    full = project.build(5)
    tryout = f"{project.dataset}@{project.build(0, limit=2)}"
    message = project.refused(2, "tag", tryout, "latest")
    assert "is a try-out of 2 documents of each source" in message
    assert "--allow-tryout" in message
    assert "is a try-out" in project.refused(2, "rollback", project.dataset, "--to", "tryout")
    assert project.json("tag", tryout, "small")["moved"]
    assert project.latest() == full
    assert project.json("tag", tryout, "latest", "--allow-tryout")["moved"]


# ---- rollback


def test_a_rebuild_with_nothing_new_leaves_latest_where_a_rollback_put_it(project: Project) -> None:
    first, second = project.build(), project.build()
    found = project.json("rollback", project.dataset, "--reason", "bad quotes")
    assert (found["version"], found["previous"], found["reason"]) == (first, second, "bad quotes")
    spec = project.folder / "spec.yaml"
    spec.write_text("dataset: data\nstore: store\nsources: [{kind: jsonl, path: a.jsonl}]\ntokenizer: {kind: byte}\n")
    for _ in range(2):
        again = project.json("build", str(spec), "--direct", "--workers", "0")
        assert (again["version"], again["published"], again["tag_moved"]) == (second, False, False)
        assert f"latest was set to {first} by hand (bad quotes) after it named {second}" in again["tag_note"]
        assert project.latest() == first
    project.num_texts += 1
    write_jsonl(project.folder / "a.jsonl", [f"text {i}" for i in range(project.num_texts)])
    newer = project.json("build", str(spec), "--direct", "--workers", "0")
    assert (newer["published"], newer["tag_moved"]) == (True, True)
    assert project.latest() == newer["version"]


def test_rollbacks_go_further_back_until_there_is_nothing(project: Project) -> None:
    versions = [project.build() for _ in range(3)]
    shown = project.shown("rollback", project.dataset)
    assert f"latest now names {project.dataset}@{versions[1]} (before: {versions[2]})" in shown
    assert f"undo: tokenloom tag {project.dataset}@{versions[2]} latest" in shown
    assert project.json("rollback", project.dataset)["version"] == versions[0]
    message = project.refused(1, "rollback", project.dataset)
    assert "there is no earlier version to go back to" in message
    assert "--to names one" in message
    assert project.json("rollback", project.dataset, "--to", versions[2])["version"] == versions[2]
    assert project.json("rollback", project.dataset)["version"] == versions[0]  # where it was before
    assert project.json("rollback", project.dataset, "--to", versions[0])["moved"] is False


# ---- log and ls


def test_the_log_shows_every_move_newest_first(project: Project) -> None:
    first, second = project.build(), project.build()
    project.json("rollback", project.dataset, "--reason", "bad quotes")
    project.store.remove(f"versions/{second}/manifest.json")
    found = project.json("log", project.dataset)
    assert [(move["number"], move["version"], move["previous"], move["reason"]) for move in found["entries"]] == [
        (3, first, second, "bad quotes"),
        (2, second, first, "build"),
        (1, first, None, "build"),
    ]
    assert [move["published"] for move in found["entries"]] == [True, False, True]
    assert all(move["by"] and move["at"].endswith("+00:00") for move in found["entries"])
    lines = project.shown("log", project.dataset).splitlines()
    assert lines[0].split() == ["move", "at", "(UTC)", "version", "by", "reason"]
    assert lines[1].endswith("bad quotes")
    assert f"{second} (gone)" in lines[2]


def test_ls_says_when_and_by_whom_each_version_was_published(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tag_moves, "user", lambda: "ada")
    first, second = project.build(), project.build()
    project.json("tag", f"{project.dataset}@{first}", "prod", "--reason", "run 12")
    unknown = project.build(0, seed=2)
    project.store.remove("tags/latest/00000003.json")
    project.store.remove(f"versions/{unknown}/build.json")
    rows = project.json("ls", project.dataset)["versions"]
    assert [row["version"] for row in rows] == [second, first, unknown]  # newest first
    assert [row["by"] for row in rows] == ["ada", "ada", None]
    assert [row["tags"] for row in rows] == [["latest"], ["prod"], []]
    lines = project.shown("ls", project.dataset).splitlines()
    assert lines[0].split() == ["version", "published", "(UTC)", "documents", "tokens", "size", "by", "tags"]
    assert rows[1]["at"][:10] in lines[2]
    assert lines[3].split()[1] == "-"


def test_ls_shows_the_newest_100_versions_and_says_how_many_more_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = LocalStore(tmp_path / "data")
    names = [f"{number * 7919 % 103:016x}" for number in range(103)]
    for number, name in enumerate(names):
        path = f"versions/{name}/manifest.json"
        dataset.replace(path, sign(empty_manifest("data", name)), durable=False)
        os.utime(dataset.local(path), (number, number))
    dataset.local("versions/" + "f" * 16).mkdir()  # a version that is being built
    assert main(["ls", str(dataset.root)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines[1:-1]} == {*names[3:]}
    assert lines[-1] == "and 3 older versions, which --json lists too"
    found = run_json(capsys, "ls", dataset.root)["versions"]
    assert sorted(version["version"] for version in found) == sorted(names)
    assert main(["ls", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["data", "103"]
