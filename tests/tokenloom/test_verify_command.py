"""`tokenloom verify`: its messages, JSON and exit codes; and `ls` in a damaged store."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.builders.commands import run_json
from tests.builders.damaging import Made, make_version, restored
from tokenloom.cli.main import main


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A version with every kind of file in it."""
    return make_version(tmp_path_factory.mktemp("command"))


def test_an_intact_version_is_reported_and_exits_with_0(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", made.reference, "--workers", "2"]) == 0
    out = capsys.readouterr().out
    assert f"data@{made.version}: nothing is damaged" in out
    result = run_json(capsys, "verify", made.reference, "--deep", "--workers", "0")
    assert set(result) == {"reference", "version", "files", "bytes", "documents_encoded_again", "damages", "warnings"}
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
        result = run_json(capsys, "verify", made.reference, "--workers", workers, code=3)
    assert {row["file"] for row in result["damages"]} == set(chosen)
    assert all(row["what"] and row["next_step"] for row in result["damages"])
    assert all(f"\n{name}: " in out for name in chosen)
    assert "restore it from a copy, or delete it and the manifest.json of its version and build again" in out


def test_a_wrong_spec_exits_with_2(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value = made.spec.model_dump(mode="json") | {"seed": 3}
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(value))
    assert main(["verify", made.reference, "--spec", str(path)]) == 2
    assert "only --deep reads" in capsys.readouterr().err
    assert main(["verify", made.reference, "--deep", "--spec", str(path), "--workers", "0"]) == 2
    assert "--spec: the version was built from another spec, which differs in seed" in capsys.readouterr().err
    value["seed"] = 0
    path.write_text(yaml.safe_dump(value))
    assert main(["verify", made.reference, "--deep", "--spec", str(path), "--workers", "0"]) == 0


def test_ls_shows_a_damaged_version_beside_others(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    with restored(made):
        made.store.local(f"versions/{made.version}/manifest.json").write_bytes(b"{}")
        dataset = run_json(capsys, "ls", f"{made.spec.store}/data")
        assert [row["version"] for row in dataset["versions"]] == [made.version]
        assert "manifest.json: the checksum does not match" in dataset["versions"][0]["damage"]
        assert main(["ls", f"{made.spec.store}/data"]) == 0
        assert f"tokenloom verify {made.store.root}@{made.version}" in capsys.readouterr().out
        assert run_json(capsys, "ls", made.spec.store)["datasets"][0]["latest"] == made.version
    with restored(made):
        made.store.local("tags/latest/00000003.json").write_bytes(b"{}")
        for place in (made.spec.store, f"{made.spec.store}/data"):
            assert main(["ls", place]) == 1
            assert "tags/latest/00000003.json: the checksum does not match" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", ["tok", "docs"])
def test_peek_never_shows_text_with_rows_of_another_shard(
    made: Made, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made.store.local(f"versions/{made.version}/train")
    with restored(made):
        (folder / f"000000.{suffix}").write_bytes((folder / f"000001.{suffix}").read_bytes())
        assert main(["peek", made.reference]) == 1
        shown = capsys.readouterr().err
        problem = "it is not the shard" if suffix == "tok" else "and it has another number of rows"
        assert f"train/000000.{suffix}: " in shown
        assert problem in shown
        assert "restore it" in shown
        (folder / f"000000.{suffix}").unlink()
        assert main(["peek", made.reference]) == 1
        shown = capsys.readouterr().err
        assert f"{folder}/000000.{suffix}: missing from a published version; " in shown
        assert f"`tokenloom verify {made.store.root}@{made.version}` says what to do" in shown


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_stands_in_place_of_a_side_file_costs_nothing_but_that_file(
    made: Made, make: Callable[[Path], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    reference = f"{made.store.root}@{made.version}"
    build, plan = f"versions/{made.version}/build.json", f"work/plans/{made.version}.json"
    record = made.store.read(build)
    try:
        for path in map(made.store.local, (build, plan)):
            path.unlink(missing_ok=True)
            path.parent.mkdir(exist_ok=True)
            make(path)
        verified = run_json(capsys, "verify", reference, "--workers", "0")
        assert (verified["damages"], verified["files"] > 3) == ([], True)
        assert any(warning.startswith(f"{build}: damaged, ") for warning in verified["warnings"])
        assert run_json(capsys, "inspect", reference)["inputs"]
        run_json(capsys, "report", str(made.store.root.parent))
        (dataset,) = run_json(capsys, "du", str(made.store.root.parent))["datasets"]
        assert dataset["versions"][0]["published"]
        assert run_json(capsys, "gc", str(made.store.root))["kept"]
    finally:
        for path in map(made.store.local, (build, plan)):
            path.rmdir() if path.is_dir() else path.unlink()
        made.store.replace(build, record)
