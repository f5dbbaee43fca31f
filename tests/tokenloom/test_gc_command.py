"""`tokenloom gc` and `tokenloom du`: their options, their JSON, their exit codes, and what they print."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.commands import run_json
from tests.builders.retention_actors import built_files
from tokenloom.cli.main import main
from tokenloom.storage.stores.local import LocalStore
from tokenloom.wording import seconds_of, shown_age


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a dataset of two versions."""
    return built_files(tmp_path_factory.mktemp("built"))


@pytest.fixture
def store(files: dict[str, bytes], tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path / "store" / "data")
    for path, data in files.items():
        store.replace(path, data, durable=False)
    return store


def test_gc_deletes_only_when_asked(store: LocalStore, capsys: pytest.CaptureFixture[str]) -> None:
    young = run_json(capsys, "gc", store.root, "--keep-last", 0, "--delete")
    assert (young["deleted"], len(young["kept"]), young["bytes"]) == ([], 2, 0)
    arguments = ["gc", store.root, "--keep-last", 0, "--grace", "0"]
    would = run_json(capsys, *arguments)
    (usage,) = run_json(capsys, "du", store.root, "--keep-last", 0, "--grace", "0")["datasets"]
    assert (len(would["deleted"]), would["delete"]) == (1, False)
    assert usage["gc_frees"] == would["bytes"] > 0
    assert len(store.names("versions")) == 2
    assert run_json(capsys, *arguments, "--delete") == would | {"delete": True}
    assert run_json(capsys, "ls", store.root)["versions"][0]["tags"] == ["latest"]


def test_gc_prints_a_table_with_reasons(store: LocalStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gc", str(store.root), "--keep-last", "0", "--grace", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("would delete" in line and "no rule keeps it" in line for line in lines)
    assert any("kept" in line and "tagged latest" in line for line in lines)
    assert lines[-2].startswith("data: would delete 1 version and free ")
    assert lines[-1] == "nothing was deleted; add --delete to do it"
    assert main(["gc", str(store.root), "--keep-last", "0", "--grace", "0", "--delete"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("data: deleted 1 version, freed ")


@pytest.mark.parametrize(
    ("dataset", "options", "code", "message"),
    [
        ("data", ["--grace", "a day"], 2, "'a day' is not a time: write a number and s, m, h or d"),
        ("data", ["--keep-last", "-1"], 2, "-1 is not in"),
        ("data@latest", [], 2, "name the dataset alone"),
        ("nothing", [], 1, "no such dataset"),
    ],
)
def test_a_wrong_option_or_dataset_is_named(
    store: LocalStore, capsys: pytest.CaptureFixture[str], dataset: str, options: list[str], code: int, message: str
) -> None:
    assert main(["gc", f"{store.root.parent}/{dataset}", *options]) == code
    assert message in capsys.readouterr().err


def test_du_shows_a_store_and_a_dataset(store: LocalStore, capsys: pytest.CaptureFixture[str]) -> None:
    usage = run_json(capsys, "du", store.root)
    assert run_json(capsys, "du", store.root.parent)["datasets"] == usage["datasets"]
    (data,) = usage["datasets"]
    assert data["dataset"] == "data"
    assert data["bytes"] == sum(file.num_bytes for file in store.files_below("").values())
    assert sorted(each["tags"] for each in data["versions"]) == [[], ["latest"]]
    assert main(["du", str(store.root)]) == 0
    assert "latest" in capsys.readouterr().out
    assert main(["du", str(store.root / "nothing")]) == 1


def test_du_shows_sizes_beside_a_damaged_tag(store: LocalStore, capsys: pytest.CaptureFixture[str]) -> None:
    (whole,) = run_json(capsys, "du", store.root)["datasets"]
    store.replace("tags/prod/00000001.json", b"{}")
    (data,) = run_json(capsys, "du", store.root.parent)["datasets"]
    assert [each["bytes"] for each in data["versions"]] == [each["bytes"] for each in whole["versions"]]
    assert (data["bytes"], data["gc_frees"], whole["damage"]) == (whole["bytes"] + 2, 0, None)
    assert main(["du", str(store.root)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("  gc would stop: ") and "tags/prod/00000001.json: the checksum does not match" in last


def test_times_are_read_and_shown() -> None:
    assert [seconds_of(text) for text in ("0", "45s", "30m", "24h", "7d", "1.5h")] == [0, 45, 1800, 86400, 604800, 5400]
    for text in ("", "h", "5", "-1h", "1e3s", "5 h", "1w"):
        with pytest.raises(ValueError, match="is not a time"):
            seconds_of(text)
    shown = {-1: "0 s", 119: "119 s", 120: "2 min", 7140: "119 min", 7200: "2 h", 169200: "47 h", 180000: "2 days"}
    assert {seconds: shown_age(seconds) for seconds in shown} == shown
