"""Exports: each format read back, refusals, resuming, damage, what is at the destination."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import xxhash

from tests.builders.commands import run_json
from tests.builders.damaging import at_write, flip_bit
from tests.builders.exported import READERS, Exportable, small_parts
from tokenloom.cli.main import main
from tokenloom.errors import FormatError, SpecError, StoreError
from tokenloom.flows.export_steps import export_directly
from tokenloom.process import process_name
from tokenloom.storage.formats.classes import learned_classes, parse_policy
from tokenloom.tasks.exporting.base import ExportOptions
from tokenloom.tasks.exporting.export import FORMATS, SUMMARY, open_export

_ROOT = Path(__file__).parents[2]
_ALL = ExportOptions([])
_TABLES = [name for name, each in FORMATS.items() if each.takes_samples]
_VOCABULARIES = {"uint8": 256, "uint16": 50_000, "uint32": 150_000}


@pytest.fixture(scope="module", params=_VOCABULARIES)
def version(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exportable:
    """A version of each type of ids."""
    return Exportable(tmp_path_factory.mktemp("version"), _VOCABULARIES[request.param])


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Exportable:
    """A version with masks, and a document of 3 MB."""
    return Exportable(tmp_path_factory.mktemp("masked"), 50_000, with_masks=True, long_tokens=1_500_000)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> list[Exportable]:
    """A version without masks, and one with masks."""
    return [Exportable(tmp_path_factory.mktemp("small"), 50_000, masks) for masks in (False, True)]


def _files(folder: Path) -> dict[str, str]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


@pytest.mark.parametrize("name", FORMATS)
def test_every_document_is_read_back_in_order(
    name: str, version: Exportable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "nanogpt" and version.vocab_size > 2**16:
        pytest.skip("refused")
    if version.vocab_size != 256:  # of which each format writes one part
        small_parts(monkeypatch)
    result = export_directly(version.reference, name, str(tmp_path / "out"), _ALL, 0)
    for split in ("train", "validation"):
        documents, _ = READERS[name](tmp_path / "out", split, version.vocab_size)
        assert documents == version.documents[split]
    assert result["documents"] == sum(map(len, version.documents.values()))
    assert result["tokens"] == sum(len(each) for split in version.documents.values() for each in split)
    assert any("empty is empty" in line for line in result["losses"])
    assert not any("empty" in path for path in _files(tmp_path / "out"))


@pytest.mark.parametrize("learn", [None, "user, reasoning"])
@pytest.mark.parametrize("name", FORMATS)
def test_masks_and_labels_are_those_of_the_policy_or_their_loss_is_said(
    name: str, learn: str | None, small: list[Exportable], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = small[True]
    monkeypatch.setattr("tokenloom.tasks.exporting.documents._PIECE_BYTES", 1000)
    result = export_directly(made.reference, name, str(tmp_path / "out"), ExportOptions(["train"], learn), 0)
    documents, masks = READERS[name](tmp_path / "out", "train", made.vocab_size)
    assert documents == made.documents["train"]
    assert any("no loss masks" in line for line in result["losses"]) is (masks is None)
    if masks is None:
        return
    learned = learned_classes(parse_policy(learn or "assistant"))
    pairs = [(ids, learned[classes]) for ids, classes in zip(documents, made.classes["train"], strict=True)]
    labels = [np.where(mask, ids, -100).tolist() for ids, mask in pairs]
    assert masks == (labels if name in _TABLES else [mask.tolist() for _, mask in pairs])


@pytest.mark.parametrize("name", _TABLES)
@pytest.mark.parametrize(("length", "masks"), [(1, True), (7, False), (5000, True)])
def test_samples_are_the_tokens_of_a_file_end_to_end(
    name: str, length: int, masks: bool, small: list[Exportable], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = small[masks]
    monkeypatch.setattr("tokenloom.tasks.exporting.documents._PIECE_BYTES", 1000)
    options = ExportOptions(["train"], "all" if masks else None, seq_len=length)
    result = export_directly(made.reference, name, str(tmp_path / "out"), options, 0)
    found, labels = READERS[name](tmp_path / "out", "train", 50_000)
    ids = np.concatenate(made.documents["train"])
    end = len(ids) // length * length
    assert found == ids[:end].reshape(-1, length).tolist()
    if masks:
        learned = learned_classes("all")[np.concatenate(made.classes["train"])]
        assert labels == np.where(learned, ids, -100)[:end].reshape(-1, length).tolist()
    assert f"up to {length - 1:,} tokens at the end of each file are lost" in result["losses"][0]


def test_parts_are_balanced_and_cut_no_document(masked: Exportable, monkeypatch: pytest.MonkeyPatch) -> None:
    small_parts(monkeypatch)
    found = open_export(masked.reference, "llmc", "/nowhere", ExportOptions(["validation"]))
    lengths = [unit.documents.num_tokens for unit in found.units]
    assert len(lengths) == -(-sum(lengths) // 2000)
    assert max(lengths) - min(lengths) < 2 * max(map(len, masked.documents["validation"]))
    assert sum(unit.documents.num_documents for unit in found.units) == len(masked.documents["validation"])


def test_what_does_not_fit_is_refused_with_what_to_use(masked: Exportable, tmp_path: Path) -> None:
    wide = Exportable(tmp_path / "wide", 150_000).reference
    for name, options, message in [
        ("nanogpt", _ALL, "nanogpt holds ids below 65,536.*; use llmc, olmo or megatron"),
        ("megatron", ExportOptions([], learn="all"), "--learn: the version has no conversations"),
        ("olmo", ExportOptions([], seq_len=8), "--unit sample: olmo is a stream .*; use mds, litdata, huggingface"),
        ("mds", ExportOptions([], seq_len=9000), r"--seq-len 9,000: validation has only 8,\d+ tokens"),
        ("megatron", ExportOptions(["empty"]), "there are no documents in empty"),
        ("mp3", _ALL, "'mp3' is not a format of exports; there are: megatron"),
    ]:
        with pytest.raises(SpecError, match=message):
            export_directly(wide, name, str(tmp_path / "out"), options, 0)
    with pytest.raises(StoreError, match="no split 'tset'"):
        export_directly(wide, "megatron", str(tmp_path / "out"), ExportOptions(["tset"]), 0)
    with pytest.raises(SpecError, match='--learn is "assistant", "last", "all"'):
        export_directly(masked.reference, "olmo", str(tmp_path / "out"), ExportOptions([], learn="teacher"), 0)
    assert not (tmp_path / "out").exists()


def test_the_summary_has_version_options_and_the_checksum_of_every_file(version: Exportable, tmp_path: Path) -> None:
    result = export_directly(version.reference, "olmo", str(tmp_path / "out"), _ALL, 0)
    summary = json.loads((tmp_path / "out" / SUMMARY).read_text())
    assert summary["export"]["version"] == result["version"]
    assert summary["export"]["options"] == {"splits": ["train", "validation"]}
    found = {name: (tmp_path / "out" / name).read_bytes() for name in _files(tmp_path / "out") if name != SUMMARY}
    records = {name: {"bytes": len(data), "xxh3_128": xxhash.xxh3_128_hexdigest(data)} for name, data in found.items()}
    assert summary["files"] == records
    assert (result["files"], result["bytes"]) == (len(found), sum(map(len, found.values())))


def test_workers_and_commands_write_the_same_bytes(
    masked: Exportable, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_parts(monkeypatch)
    for workers in (0, 2):
        run_json(capsys, "export", masked.reference, "olmo", tmp_path / str(workers), "--workers", workers)
    assert _files(tmp_path / "0") == _files(tmp_path / "2")
    assert main(["export", masked.reference, "olmo", str(tmp_path / "3"), "--workers", "0"]) == 0
    shown = capsys.readouterr()
    assert "files of olmo" in shown.out
    assert "use_array_if_local=False" in shown.err
    found = run_json(capsys, "export", masked.reference, "olmo", tmp_path / "3", "--workers", 0)
    assert found["existed"]


def test_a_destination_that_is_something_else_is_left_alone(version: Exportable, tmp_path: Path) -> None:
    folder, out = Path(version.reference.partition("@")[0]), tmp_path / "out"
    for place in (tmp_path / "done", tmp_path / "damaged"):
        export_directly(version.reference, "olmo", str(place), _ALL, 0)
    flip_bit(tmp_path / "damaged" / SUMMARY, 20)
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    (out / "link").symlink_to(tmp_path / "missing")
    (out / "dataset").symlink_to(folder)
    for place, message in {
        out: "it exists and is not this export",
        out / "mine.txt": "mine.txt: it exists and is not this export",
        tmp_path / "done": "another export is there",
        tmp_path / "damaged": r"tokenloom-export\.json: the checksum",
        Path("/proc"): "/proc: it exists and is not this export",
        out / "link": "link: Not a directory; what was exported is in .*link.tmp",
        folder / "versions" / "0123456789abcdef": "in the folder of the dataset, where gc deletes",
        out / "dataset" / "exports": "in the folder of the dataset, where gc deletes",
    }.items():
        with pytest.raises((StoreError, SpecError, FormatError), match=message):
            export_directly(version.reference, "megatron", str(place), _ALL, 0)
    assert sorted(path.name for path in (*tmp_path.iterdir(), *out.iterdir())) == [
        *("damaged", "dataset", "done", "link", "link.tmp", "mine.txt", "out")
    ]
    assert not (folder / "exports").exists()
    (out / "new").mkdir()  # an empty folder is free
    export_directly(version.reference, "olmo", str(out / "new"), _ALL, 0)


def test_a_complete_export_that_was_changed_is_not_called_complete(masked: Exportable, tmp_path: Path) -> None:
    export_directly(masked.reference, "megatron", str(tmp_path / "out"), _ALL, 0)
    for change in (lambda path: path.write_bytes(b""), Path.unlink):
        change(tmp_path / "out" / "train.idx")
        with pytest.raises(StoreError, match=r"train\.idx: it is missing or was changed after the export; delete "):
            export_directly(masked.reference, "megatron", str(tmp_path / "out"), _ALL, 0)


def test_damage_is_found_before_it_is_exported(tmp_path: Path) -> None:
    made = Exportable(tmp_path, 50_000, with_masks=True)
    for suffix in (".tok", ".mask", ".blocks"):
        path = made.shard("train", 0, suffix)
        flip_bit(path, path.stat().st_size // 2)
        with pytest.raises(FormatError, match=rf"000000\{suffix}: "):
            export_directly(made.reference, "olmo", str(tmp_path / "out"), _ALL, 0)
        assert not (tmp_path / "out").exists()
        flip_bit(path, path.stat().st_size // 2)


def test_a_resumed_export_writes_only_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError(28, "No space left on device")

    made = Exportable(tmp_path, 50_000)
    small_parts(monkeypatch)
    export_directly(made.reference, "olmo", str(tmp_path / "whole"), _ALL, 0)
    with monkeypatch.context() as patch, pytest.raises(StoreError, match="No space left"):
        at_write(patch, 40, fail)
        export_directly(made.reference, "olmo", str(tmp_path / "out"), _ALL, 0)
    staged = tmp_path / "out.tmp"
    done = {path: path.stat().st_ino for path in staged.glob("*/*.npy")}
    assert len(done) > 2
    with subprocess.Popen(["true"]) as killed:
        left = process_name(killed.pid)
    (staged / "work" / "tmp" / f"left.{left}.0").write_bytes(bytes(1000))
    with pytest.raises(SpecError, match="it is another export that is not complete"):
        export_directly(made.reference, "megatron", str(tmp_path / "out"), _ALL, 0)
    with monkeypatch.context() as patch, pytest.raises(StoreError, match="No space left"):
        at_write(patch, 5, fail)
        export_directly(made.reference, "olmo", str(tmp_path / "out"), _ALL, 0)
    assert os.listdir(staged / "work" / "tmp") == []
    export_directly(made.reference, "olmo", str(tmp_path / "out"), _ALL, 0)
    assert _files(tmp_path / "out") == _files(tmp_path / "whole")
    for path, inode in done.items():
        assert (tmp_path / "out" / path.relative_to(staged)).stat().st_ino == inode
    assert not staged.exists()
