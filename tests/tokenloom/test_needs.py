"""A version whose manifest needs what this release does not know is refused by that name, and is never lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.builders.commands import run_json
from tests.builders.datasets import build, lines_spec, local_store
from tokenloom import TokenDataset
from tokenloom.cli.main import main
from tokenloom.errors import FormatError
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.formats.manifest import read_manifest
from tokenloom.storage.formats.records import parse_json, sign
from tokenloom.storage.stores.local import LocalStore

_MESSAGE = "it needs loss_weights, unknown to this release: update tokenloom"


class Newer:
    """A dataset of two versions, each tagged; the second one, `latest`, needs loss_weights."""

    def __init__(self, folder: Path) -> None:
        self.spec: BuildSpec = lines_spec(folder, ["a text", "another text"])
        self.old = build(self.spec).version
        self.spec = lines_spec(folder, ["a text", "another text", "a third one"])
        self.version = build(self.spec).version
        self.store: LocalStore = local_store(self.spec.store, "data")
        self.dataset = str(self.store.root)
        path = self.store.local(f"versions/{self.version}/manifest.json")
        manifest: Any = parse_json(path.read_bytes(), "", is_signed=True)
        self.data = sign(manifest | {"needs": ["loss_weights"]})
        path.write_bytes(self.data)
        path.with_name("train").joinpath("000000.weights").write_bytes(b"1234")


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Newer:
    return Newer(tmp_path_factory.mktemp("newer"))


@pytest.mark.parametrize(
    "command",
    [
        *(
            "inspect REF",
            "report REF",
            "peek REF",
            "verify REF",
            "verify REF --deep",
            "trace REF --sample 0 --seq-len 4",
        ),
        *(f"where REF --content {'0' * 32}", "export REF megatron OUT", "diff OLD REF", "diff REF OLD"),
        *("tag REF other", "rollback DATASET --to VERSION"),
    ],
)
def test_every_command_that_uses_the_data_refuses_a_version_by_what_it_needs(
    newer: Newer, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"REF": f"{newer.dataset}@{newer.version}", "OLD": f"{newer.dataset}@{newer.old}"}
    names |= {"OUT": f"{tmp_path}/out", "DATASET": newer.dataset, "VERSION": newer.version}
    assert main([names.get(word, word) for word in command.split()]) == 1
    printed = capsys.readouterr()
    assert f"versions/{newer.version}/manifest.json: {_MESSAGE}" in printed.err
    assert "nothing is damaged" not in printed.out
    assert not (tmp_path / "out").exists()


def test_readers_and_builds_refuse_a_version_by_what_it_needs(newer: Newer) -> None:
    for opening in (
        lambda: TokenDataset(newer.dataset, "train", 4),
        lambda: TokenDataset(f"{newer.dataset}@{newer.version}", "train", 4),
        lambda: build(newer.spec),
    ):
        with pytest.raises(FormatError, match=_MESSAGE):
            opening()


def test_a_version_that_needs_a_newer_release_is_listed_kept_and_deleted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newer = Newer(tmp_path)
    (row,) = (row for row in run_json(capsys, "ls", newer.dataset)["versions"] if row["version"] == newer.version)
    assert row["tags"] == ["latest"]
    assert _MESSAGE in row["damage"]
    assert main(["ls", newer.dataset]) == 0
    assert "unreadable" in capsys.readouterr().out
    assert main(["ls", newer.spec.store]) == 0
    assert main(["report", newer.spec.store]) == 0
    assert {entry["published"] for entry in run_json(capsys, "log", newer.dataset)["entries"]} == {True}
    everything = ["gc", newer.dataset, "--keep-last", 0, "--grace", "0", "--delete"]
    assert run_json(capsys, *everything)["deleted"] == [newer.old]
    assert newer.store.read(f"versions/{newer.version}/manifest.json") == newer.data
    assert newer.store.exists(f"versions/{newer.version}/train/000000.weights")
    (usage,) = run_json(capsys, "du", newer.dataset)["datasets"]
    assert [each["published"] for each in usage["versions"]] == [True]
    other = build(lines_spec(tmp_path, ["entirely new"])).version
    assert run_json(capsys, *everything)["deleted"] == [newer.version]
    assert newer.store.names("versions") == [other]


def test_a_tag_leaves_a_version_that_needs_a_newer_release(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newer = Newer(tmp_path)
    assert run_json(capsys, "rollback", newer.dataset)["version"] == newer.old
    assert len(TokenDataset(newer.dataset, "train", 4)) > 0


@pytest.mark.parametrize("needs", ["loss_weights", [1], 5, {}, [["a"]]])
def test_needs_that_are_not_texts_are_refused(newer: Newer, needs: object) -> None:
    value: Any = parse_json(newer.data, "", is_signed=True)
    with pytest.raises(FormatError, match=r"manifest\.json: needs.* must be"):
        read_manifest(sign(value | {"needs": needs}), "manifest.json")


def test_what_a_version_needs_is_absent_where_it_needs_nothing(newer: Newer) -> None:
    data = newer.store.read(f"versions/{newer.old}/manifest.json")
    assert b"needs" not in data
    assert b"needs" not in sign(read_manifest(data, "manifest.json"))
