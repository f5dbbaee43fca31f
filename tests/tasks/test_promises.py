"""Promises of a build that a change could easily break: its cache, its memory, its validation, its repairs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.builders.damaging import flip_bit
from tests.builders.datasets import (
    build,
    lines_spec,
    listed_files,
    local_store,
    make_spec,
    small_spec,
    stored_texts,
    write_jsonl,
    write_parquet,
)
from tests.builders.observing import messages_of_builds
from tokenloom.cli.main import main
from tokenloom.errors import FormatError, InputError, WorkError
from tokenloom.tasks.building import tokenization
from tokenloom.tasks.sources import FileRange, make_reader


def jsonl(path: Path) -> dict[str, Any]:
    return {"kind": "jsonl", "path": str(path)}


def test_the_size_of_spills_does_not_decide_what_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [f"document {i} " * (1 + i % 40) for i in range(900)])
    monkeypatch.setattr("tokenloom.tasks.sources.reader.BATCH_BYTES", 1000)
    built, most = [], 64_000_000
    limits = {"small": (9_000, most), "small in memory": (most, 20_000), "large": (most, most)}
    for name, (text_bytes, held_bytes) in limits.items():
        monkeypatch.setattr("tokenloom.tasks.building.tokenization.SPILL_TEXT_BYTES", text_bytes)
        monkeypatch.setattr("tokenloom.tasks.building.tokenization.HELD_BYTES", held_bytes)
        spec = make_spec(tmp_path / name, [jsonl(path)])
        version = build(spec).version
        built.append((version, listed_files(spec, version)))
        num_spills = len(list((tmp_path / name).glob("*/work/spills/*.spill")))
        assert (num_spills > 10) == name.startswith("small")
    assert built[0] == built[1] == built[2]


def test_a_file_that_cannot_be_parsed_because_it_changes_is_not_called_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_parquet(tmp_path / "a.parquet", ["one", "two"])
    read = tokenization.read_documents

    def change_first(*arguments: Any) -> Any:
        path.write_bytes(path.read_bytes()[:-10])
        return read(*arguments)

    monkeypatch.setattr(tokenization, "read_documents", change_first)
    with pytest.raises(InputError, match=r"a\.parquet: it changed while it was read; build again"):
        build(make_spec(tmp_path / "store", [{"kind": "parquet", "path": str(path)}]))


def test_an_old_file_is_remembered_and_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ["one", "two"])
    monkeypatch.setattr("tokenloom.storage.work.fingerprints._RACY_NS", -(10**18))
    spec = make_spec(tmp_path / "store", [jsonl(path)])
    first = build(spec)

    def refuse(path: str) -> str:
        raise AssertionError(f"{path} is read again")

    monkeypatch.setattr("tokenloom.storage.work.fingerprints.open_regular", refuse)
    assert build(spec).version == first.version


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"bytes": 1}'])
def test_damaged_records_of_a_killed_build_are_rewritten(tmp_path: Path, damage: bytes) -> None:
    spec = lines_spec(tmp_path, [f"document {i}" for i in range(50)])
    version = build(spec).version
    expected = listed_files(spec, version)
    store = local_store(spec.store, spec.dataset)
    for name in store.names(f"work/builds/{version}"):
        store.local(f"work/builds/{version}/{name}").write_bytes(damage)
    store.local(f"versions/{version}/manifest.json").unlink()
    assert build(spec).published
    assert listed_files(spec, version) == expected


def test_a_record_under_the_name_of_another_is_refused_and_its_work_made_again(tmp_path: Path) -> None:
    """Each record of a build in turn is replaced with the next one of its folder."""
    spec = small_spec(tmp_path, documents={"repeat": {"by": "gone", "times": {"False": 2}}} | _listing(tmp_path))
    version = build(spec).version
    expected = listed_files(spec, version)
    store = local_store(spec.store, spec.dataset)
    num_tried = 0
    for folder in (f"work/builds/{version}", "work/spills"):
        paths = [f"{folder}/{name}" for name in store.names(folder) if name.endswith((".json", ".copies"))]
        whole = {path: store.read(path) for path in paths}
        for path, other in zip(paths, [*paths[1:], paths[0]], strict=True):
            if path.rpartition(".")[2] != other.rpartition(".")[2] or whole[path] == whole[other]:
                continue
            store.replace(path, whole[other])
            store.local(f"versions/{version}/manifest.json").unlink()
            if path.endswith(".copies"):
                with pytest.raises(WorkError, match="run the same command again"):
                    build(spec)
            assert build(spec).published
            assert listed_files(spec, version) == expected
            assert store.read(path) == whole[path] or path.startswith("work/spills")
            num_tried += 1
    assert num_tried > 10


def _listing(folder: Path) -> dict[str, Any]:
    """Return the options of a build whose documents a list marks."""
    (folder / "listed.txt").write_text('"nothing"\n')
    return {"marks": [{"path": str(folder / "listed.txt"), "key": "content", "as": "gone"}]}


@pytest.mark.parametrize("suffix", ["tok", "docs", "blocks"])
@pytest.mark.parametrize("damage", ["flipped", "cut", "deleted"])
def test_a_finished_shard_that_was_damaged_is_written_again(tmp_path: Path, suffix: str, damage: str) -> None:
    spec = lines_spec(tmp_path, [f"document {i}" for i in range(50)])
    version = build(spec).version
    folder = local_store(spec.store, spec.dataset).local(f"versions/{version}")
    files = {file: file.read_bytes() for file in (folder / "train").iterdir()}
    (folder / "manifest.json").unlink()
    shard = folder / f"train/000000.{suffix}"
    middle = shard.stat().st_size // 2
    if damage == "flipped":
        flip_bit(shard, middle)
    elif damage == "cut":
        os.truncate(shard, middle)
    else:
        shard.unlink()
    with messages_of_builds() as messages:
        assert build(spec).published
    assert {file: file.read_bytes() for file in (folder / "train").iterdir()} == files
    assert any("000000: its files were damaged after they were written" in text for text in messages)


@pytest.mark.parametrize("key", ["spec", "exclude", "huggingface", "sentencepiece", "ranks", "dataset", "saved", "csv"])
@pytest.mark.parametrize("what", ["pipe", "device"])
def test_whatever_a_spec_names_is_a_regular_file(
    what: str, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_jsonl(tmp_path / "a.jsonl", ["one"])
    (tmp_path / "folder").mkdir()
    odd = tmp_path / {"dataset": "folder/README.md", "saved": "folder/state.json"}.get(key, "odd.json")
    os.mkfifo(odd) if what == "pipe" else odd.symlink_to("/dev/zero")
    tokenizer, source, documents = "{kind: byte}", "{kind: jsonl, path: a.jsonl}", "{}"
    if key in ("huggingface", "sentencepiece"):
        tokenizer = f"{{kind: {key}, path: odd.json}}"
    elif key == "ranks":
        tokenizer = "{kind: tiktoken, ranks: odd.json, pattern: gpt2}"
    elif key == "exclude":
        documents = "{exclude: odd.json}"
    elif key != "spec":
        of = {"dataset": "huggingface, name: ./folder", "saved": "arrow, path: folder", "csv": "csv, path: odd.json"}
        source = f"{{kind: {of[key]}}}"
    (tmp_path / "spec.yaml").write_text(
        f"dataset: data\nstore: st\ntokenizer: {tokenizer}\nsources: [{source}]\ndocuments: {documents}\n"
    )
    spec = odd if key == "spec" else tmp_path / "spec.yaml"
    assert main(["build", str(spec), "--direct", "--workers", "0"]) in (1, 2)
    message = capsys.readouterr().err
    assert str(odd) in message
    assert "not a regular file" in message


@pytest.mark.parametrize("argument", ["--text", "--state"])
def test_the_file_of_an_argument_is_a_regular_file(
    argument: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = make_spec(tmp_path / "store", [jsonl(write_jsonl(tmp_path / "a.jsonl", ["one"]))])
    build(spec)
    os.mkfifo(tmp_path / "pipe")
    command = ["where", f"{spec.store}/{spec.dataset}", argument, str(tmp_path / "pipe")]
    found = ["--path", "a.jsonl", "--row", "0", "--batch-size", "1"]
    assert main([*command, *(found if argument == "--state" else [])]) in (1, 2)
    message = capsys.readouterr().err
    assert f"{tmp_path}/pipe" in message
    assert "not a regular file" in message


@pytest.mark.parametrize("kind", ["jsonl", "csv", "text", "parquet", "arrow", "arrayrecord"])
def test_an_input_that_becomes_a_pipe_after_the_plan_is_an_error(kind: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a")
    reader = make_reader({"kind": kind, "text": "text", "delimiter": ",", "max_bytes": 100})
    with pytest.raises(InputError, match=f"{tmp_path}/a: can't be read: not a regular file; check the file"):
        list(reader.read(str(tmp_path / "a"), FileRange(0, 1)))


def test_a_published_version_with_a_missing_shard_fails_the_build(tmp_path: Path) -> None:
    spec = lines_spec(tmp_path, ["one", "two", "three"])
    version = build(spec).version
    expected = listed_files(spec, version)
    folder = local_store(spec.store, spec.dataset).local(f"versions/{version}")
    (folder / "train" / "000000.tok").unlink()
    with pytest.raises(FormatError, match=r"000000\.tok: missing from a published version.*delete .*manifest\.json"):
        build(spec)
    (folder / "manifest.json").unlink()
    build(spec)
    assert listed_files(spec, version) == expected


def test_a_local_name_with_colons_is_not_a_chain_of_file_systems(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a::b.jsonl", ["one", "two"])
    spec = make_spec(tmp_path / "store", [jsonl(path)], splits={"train": 1.0})
    assert stored_texts(spec, build(spec).version) == ["one", "two"]
