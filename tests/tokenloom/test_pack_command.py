"""`tokenloom pack`: what it counts, keeps, prints and refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.commands import run_json
from tests.builders.datasets import build, jsonl_spec, local_store
from tokenloom.cli.main import main
from tokenloom.storage.formats.manifest import Manifest
from tokenloom.storage.packing.packings import PACKINGS, PackingShares, shares_of
from tokenloom.storage.packing.sample_counts import sample_counts
from tokenloom.storage.stores.local import LocalStore
from tokenloom.storage.versions.published import load_manifest
from tokenloom.storage.versions.stored_shard import StoredShard


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("pack")
    texts = [f"text number {i}: " + "abc " * (i % 40) for i in range(300)]
    spec = jsonl_spec(folder, texts, shard_tokens=9000, splits={"train": 0.8, "validation": 0.2})
    return f"{spec.store}/data@{build(spec).version}"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _opened(reference: str) -> tuple[LocalStore, Manifest]:
    folder, _, version = reference.partition("@")
    store = local_store(str(Path(folder).parent), "data")
    return store, load_manifest(store, version)


def test_the_counts_of_all_splits_and_packings_equal_those_of_their_shards(
    reference: str, capsys: pytest.CaptureFixture[str], cache: Path
) -> None:
    value = run_json(capsys, "pack", reference, "--seq-len", "64")
    store, manifest = _opened(reference)
    assert (value["reference"], value["seq_len"], value["cache_folder"]) == (reference, 64, str(cache))
    assert [(row["split"], row["packing"]) for row in value["packings"]] == [
        (split, packing) for split in ("train", "validation") for packing in PACKINGS
    ]
    for row in value["packings"]:
        total = PackingShares(0, 0, 0, 0, 0, 0)
        for shard in manifest.splits[row["split"]].shards:
            offsets = StoredShard(store, manifest.version, shard).offsets
            total += shares_of(row["packing"], 64, shard.tokens, offsets)
        assert row["samples"] == total.num_samples > 0
        assert (row["padding_share"], row["cut_share"]) == (total.padding_share, total.cut_share)
        assert row["dropped_share"] == total.dropped_tokens / manifest.splits[row["split"]].tokens


def test_readers_use_the_cached_counts(
    reference: str, capsys: pytest.CaptureFixture[str], cache: Path, tmp_path: Path
) -> None:
    value = run_json(capsys, "pack", reference, "--seq-len", "64", "--packing", "best_fit", "--split", "train")
    (row,) = value["packings"]
    _, manifest = _opened(reference)
    counts = sample_counts(LocalStore(tmp_path / "none"), manifest, "train", "best_fit", 64, cache)
    assert counts.sum() == row["samples"]
    assert len(list((cache / "counts").iterdir())) == 1


def test_the_table_has_a_line_for_each_packing(reference: str, capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    asked = ["--packing", "document", "--packing", "best_fit", "--packing", "document"]
    assert main(["pack", reference, "--seq-len", "2048", *asked, "--split", "train"]) == 0
    header, *lines, last = capsys.readouterr().out.splitlines()
    assert header.split("  ")[1].strip() == "split"
    assert [line.split()[:3] for line in lines] == [["train", "document", "2048"], ["train", "best_fit", "2048"]]
    assert lines[0].split()[3:] == ["0", "0.00%", "100.00%", "100.00%"]
    assert last == f"counts for readers on this machine are in {cache / 'counts'}"


def test_the_table_is_shown_although_the_cache_can_not_be_written(
    reference: str, capsys: pytest.CaptureFixture[str], cache: Path
) -> None:
    cache.write_text("")
    value = run_json(capsys, "pack", reference, "--seq-len", "64", "--split", "validation")
    assert [row["kept"] for row in value["packings"]] == [True, *[False] * (len(PACKINGS) - 1)]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--seq-len", "64", "--packing", "greedy"], 2, "packing: one of concat, document, document_padded, best_fit"),
        (["--seq-len", str(2**31)], 2, "seq_len must be in [1, 2**31)"),
        (["--seq-len", "64", "--split", "tests"], 1, "no split 'tests'; it has: train, validation"),
    ],
)
def test_a_wrong_argument_is_reported(
    reference: str, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    assert main(["pack", reference, *arguments]) == code
    assert message in capsys.readouterr().err
