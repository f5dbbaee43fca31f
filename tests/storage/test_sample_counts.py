"""Numbers of samples: from arithmetic, the cache or the shards, and damaged files of the cache."""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.builders.datasets import build, lines_spec
from tokenloom.errors import StoreError
from tokenloom.storage import open_shard
from tokenloom.storage.cache import default_cache_folder
from tokenloom.storage.formats.records import sign
from tokenloom.storage.packing.packings import counts_path, packing_named, sample_counts
from tokenloom.storage.stores.local import LocalStore
from tokenloom.storage.versions.published import load_manifest, version_path
from tokenloom.storage.versions.references import dataset_store


class _CountingStore(LocalStore):
    """A local store that counts the bytes that are read in ranges."""

    num_read = 0

    def read_range(self, path: str, start: int, end: int) -> bytes:
        data = super().read_range(path, start, end)
        self.num_read += len(data)
        return data


class _Built:
    """A small dataset, its manifest, and its number of samples counted from the shards."""

    def __init__(self, folder: Path) -> None:
        texts = [f"text number {i}: " + "abc " * (i % 40) for i in range(300)]
        self.spec = lines_spec(folder, texts, shard_tokens=5000)
        store = dataset_store(self.spec.store, "data")
        self.manifest = load_manifest(store, build(self.spec).version)
        self.store = _CountingStore(store.root)

    def counts(self, packing: str, seq_len: int, split: str = "train") -> list[int]:
        counts = []
        for entry in self.manifest.splits[split].shards:
            shard = open_shard(self.store.local(version_path(self.manifest.version, entry.name)))
            offsets = np.array([0, len(shard.tokens)], np.uint64) if packing == "concat" else shard.document_offsets
            counts.append(packing_named(packing).count(seq_len, offsets))
        return counts


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> _Built:
    return _Built(tmp_path_factory.mktemp("plain"))


def test_counts_of_concat_are_found_without_a_shard(plain: _Built, tmp_path: Path) -> None:
    nowhere = LocalStore(tmp_path / "none")
    concat = sample_counts(nowhere, plain.manifest, "train", packing_named("concat"), 30, tmp_path)
    assert concat.dtype == np.int64
    assert concat.tolist() == plain.counts("concat", 30)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("packing", ["document", "document_padded", "best_fit"])
def test_counts_are_computed_once_without_reading_tokens_and_cached(
    plain: _Built, packing: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tokenloom")
    before = plain.store.num_read
    first = sample_counts(plain.store, plain.manifest, "train", packing_named(packing), 30, tmp_path)
    assert first.tolist() == plain.counts(packing, 30)
    shards = plain.manifest.splits["train"].shards
    assert plain.store.num_read - before == sum(4096 + 8 * (shard.documents + 1) for shard in shards)
    again = sample_counts(LocalStore(tmp_path / "none"), plain.manifest, "train", packing_named(packing), 30, tmp_path)
    assert again.tolist() == first.tolist()
    (message,) = [record.getMessage() for record in caplog.records]
    path = counts_path(tmp_path, plain.manifest, "train", packing_named(packing), 30)
    assert f"samples of train for {packing}/30 in {len(shards)} shards" in message
    assert message.endswith(f"to keep in {path}")
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [path]


def test_cached_counts_are_not_used_for_another_packing_or_length(plain: _Built, tmp_path: Path) -> None:
    sample_counts(plain.store, plain.manifest, "train", packing_named("best_fit"), 30, tmp_path)
    kept = counts_path(tmp_path, plain.manifest, "train", packing_named("best_fit"), 30)
    for packing, seq_len in (("best_fit", 31), ("document", 30)):
        shutil.copy(kept, counts_path(tmp_path, plain.manifest, "train", packing_named(packing), seq_len))
        counts = sample_counts(plain.store, plain.manifest, "train", packing_named(packing), seq_len, tmp_path)
        assert counts.tolist() == plain.counts(packing, seq_len)


@pytest.mark.parametrize("damage", ["cut", "byte", "shards", "folder"])
def test_a_damaged_cache_file_is_recreated(plain: _Built, damage: str, tmp_path: Path) -> None:
    expected = sample_counts(plain.store, plain.manifest, "train", packing_named("best_fit"), 30, tmp_path)
    path = counts_path(tmp_path, plain.manifest, "train", packing_named("best_fit"), 30)
    data = path.read_bytes()
    others = {"cut": data[:-9], "byte": data.replace(b":1", b":2", 1), "shards": sign({"counts": [1]})}
    path.unlink()
    if damage == "folder":
        path.mkdir()
    else:
        path.write_bytes(others[damage])
    counts = sample_counts(plain.store, plain.manifest, "train", packing_named("best_fit"), 30, tmp_path)
    assert counts.tolist() == expected.tolist()
    assert path.is_dir() if damage == "folder" else path.read_bytes() == data
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # no temporary file stays


def test_a_cache_folder_that_cannot_be_written_is_a_warning(
    plain: _Built, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    counts = sample_counts(plain.store, plain.manifest, "train", packing_named("best_fit"), 30, tmp_path / "file")
    assert counts.tolist() == plain.counts("best_fit", 30)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "can't be written: Not a directory; TOKENLOOM_CACHE names another folder" in warning


def test_a_split_name_never_leaves_the_cache_folder(plain: _Built, tmp_path: Path) -> None:
    manifest = replace(plain.manifest, splits={"../../x": plain.manifest.splits["train"]})
    assert counts_path(tmp_path, manifest, "../../x", packing_named("best_fit"), 30).parent == tmp_path / "counts"


def test_the_cache_folder_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path))
    assert default_cache_folder() == tmp_path
    monkeypatch.setenv("TOKENLOOM_CACHE", "")
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_cache_folder() == Path("/home/someone/.cache/tokenloom")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # a user whom the system does not list
    with pytest.raises(StoreError, match=r"no home folder .*; set TOKENLOOM_CACHE"):
        default_cache_folder()
