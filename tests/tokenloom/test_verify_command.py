"""`tokenloom verify`: its words, its JSON, its exit codes; and `ls` beside damages."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.storage.damaging import Made, make_version, restored
from tokenloom.cli import main


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A version with every kind of file in it."""
    return make_version(tmp_path_factory.mktemp("command"))


def _json(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == code
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    value: dict[str, Any] = json.loads(out)
    return value


def test_a_whole_version_is_told_and_exits_with_0(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", made.reference, "--workers", "2"]) == 0
    out = capsys.readouterr().out
    assert f"data@{made.version}: nothing is damaged" in out
    result = _json(capsys, 0, "verify", made.reference, "--deep", "--workers", "0")
    assert set(result) == {
        "reference",
        "version",
        "files",
        "bytes",
        "documents_encoded_again",
        "damages",
        "warnings",
    }
    assert result["documents_encoded_again"] == made.manifest["rows"]["kept"]
    assert re.search(rf"{result['files']} files, {result['bytes']:,} bytes read", out)


@pytest.mark.parametrize("workers", ["0", "2"])
def test_every_damaged_file_is_named_and_the_exit_code_is_3(
    made: Made, capsys: pytest.CaptureFixture[str], workers: str
) -> None:
    chosen = [name for name in made.files if name.endswith((".tok", "inputs.json", "00000002.json"))]
    with restored(made):
        for name in chosen:
            data = made.store.local(name).read_bytes()
            made.store.local(name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        assert main(["verify", made.reference, "--workers", workers]) == 3
        out = capsys.readouterr().out
        result = _json(capsys, 3, "verify", made.reference, "--workers", workers)
    assert {row["file"] for row in result["damages"]} == set(chosen)
    assert all(row["what"] and row["next_step"] for row in result["damages"])
    assert all(f"\n{name}: " in out for name in chosen)
    assert "restore it from a copy, or delete it and the manifest.json of its version and build again" in out


def test_what_can_not_be_read_at_all_exits_with_1(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    store = made.spec.store
    for reference, told in (
        (f"{store}/gnus", "no dataset 'gnus'"),
        (f"{store}/data@staging", "no tag 'staging'; tags: latest, prod"),
        (f"{store}/data@{'a' * 16}", f"no version {'a' * 16}"),
    ):
        assert main(["verify", reference, "--workers", "0"]) == 1
        assert told in capsys.readouterr().err


def test_a_wrong_spec_exits_with_2(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value = made.spec.model_dump(mode="json") | {"seed": 3}
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(value))
    assert main(["verify", made.reference, "--spec", str(path)]) == 2
    assert "only --deep reads" in capsys.readouterr().err
    assert main(["verify", made.reference, "--deep", "--spec", str(path), "--workers", "0"]) == 2
    assert "--spec: it is not what the version was built from: seed differ" in capsys.readouterr().err
    value["seed"] = 0
    path.write_text(yaml.safe_dump(value))
    assert main(["verify", made.reference, "--deep", "--spec", str(path), "--workers", "0"]) == 0


def test_ls_shows_a_damaged_version_beside_others(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    with restored(made):
        made.store.local(f"versions/{made.version}/manifest.json").write_bytes(b"{}")
        dataset = _json(capsys, 0, "ls", f"{made.spec.store}/data")
        assert [row["version"] for row in dataset["versions"]] == [made.version]
        assert "manifest.json: the checksum does not match" in dataset["versions"][0]["damage"]
        assert main(["ls", f"{made.spec.store}/data"]) == 0
        assert f"tokenloom verify {made.store.root}@{made.version}" in capsys.readouterr().out
        assert _json(capsys, 0, "ls", made.spec.store)["datasets"][0]["latest"] == made.version
    with restored(made):
        made.store.local("tags/latest/00000003.json").write_bytes(b"{}")
        assert "damaged: tags/latest" in _json(capsys, 0, "ls", made.spec.store)["datasets"][0]["damage"]
        dataset = _json(capsys, 0, "ls", f"{made.spec.store}/data")
        assert dataset["versions"][0]["tags"] == ["prod"]
        assert dataset["damages"] == ["damaged: tags/latest; see `tokenloom verify`"]
    assert _json(capsys, 0, "ls", f"{made.spec.store}/data")["damages"] == []
