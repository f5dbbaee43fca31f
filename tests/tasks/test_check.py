"""The check of a build: which documents it encodes again, how much it reads, and what it finds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from tests.builders.chats import with_chats
from tests.builders.datasets import build, build_record, lines_spec, local_store, make_spec, write_jsonl, write_parquet
from tokenloom.errors import CheckError
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.formats.classes import TEXT_CLASS
from tokenloom.storage.formats.document_table import DocumentTable
from tokenloom.storage.versions.stored_shard import StoredShard
from tokenloom.storage.work.spill import Spill
from tokenloom.tasks.building import check as sample
from tokenloom.tasks.building.check import NUM_SAMPLED, SAMPLED_TOKENS, Sample, compare_documents, read_rows
from tokenloom.tasks.building.plan import Build
from tokenloom.tasks.sources import parquet


def num_checked(spec: BuildSpec, version: str) -> int:
    return build_record(local_store(spec.store, "data"), version).measured["documents_encoded_again"]


# Which documents


def test_1000_documents_are_checked_however_uneven_the_splits(tmp_path: Path) -> None:
    splits = {"train": 0.996, "a": 0.001, "b": 0.001, "c": 0.001, "d": 0.001}
    spec = lines_spec(tmp_path, [f"document number {i}" for i in range(5000)], splits=splits)
    assert num_checked(spec, build(spec).version) == NUM_SAMPLED


@pytest.mark.parametrize("deduplicate", [True, False])
def test_a_small_build_is_checked_whole(deduplicate: bool, tmp_path: Path) -> None:
    texts = [f"document number {i % 700}" for i in range(NUM_SAMPLED)]
    for name, half in (("a", texts[:500]), ("b", texts[500:])):
        write_jsonl(tmp_path / f"{name}.jsonl", half)
    sources = [{"kind": "jsonl", "path": f"{tmp_path}/*.jsonl"}]
    spec = make_spec(tmp_path / "store", sources, documents={"deduplicate": deduplicate})
    assert num_checked(spec, build(spec).version) == (700 if deduplicate else NUM_SAMPLED)


def test_of_long_documents_fewer_are_checked(tmp_path: Path) -> None:
    text = "a b c d " * (SAMPLED_TOKENS // 80)  # 100,000 tokens or more, so a run has one
    spec = lines_spec(tmp_path, [f"{i} {text}" for i in range(25)])
    assert num_checked(spec, build(spec).version) == 10


def test_of_many_shards_only_some_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "_MAX_SHARDS", 3)
    read: set[str] = set()
    table = StoredShard.table

    def noted(shard: StoredShard, num_inputs: int) -> DocumentTable:
        read.add(shard.entry.name)
        return table(shard, num_inputs)

    monkeypatch.setattr(StoredShard, "table", noted)
    spec = lines_spec(tmp_path, [f"document number {i}" for i in range(2000)], splits={"train": 1}, shard_tokens=4000)
    assert num_checked(spec, build(spec).version) > 0
    assert 1 < len(read) <= 3


def test_each_document_is_as_likely_to_be_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its file, its place there and its shard."""
    for name in "abcd":
        write_jsonl(tmp_path / f"{name}.jsonl", [f"document number {i} of {name}" for i in range(5000)])
    sources = [{"kind": "jsonl", "path": f"{tmp_path}/*.jsonl"}]
    chosen: list[tuple[str, int]] = []

    def keep(subject: Build, part: Sample) -> list[sample.Difference]:
        chosen.extend((Path(part.file.path).stem, document.row) for document in part.documents)
        return compare_documents(subject, part)

    monkeypatch.setattr("tokenloom.flows.build_steps.compare_documents", keep)
    for seed in range(5):
        build(make_spec(tmp_path / "store", sources, seed=seed, shard_tokens=100_000))
    assert len(chosen) == 5 * NUM_SAMPLED
    length = (tmp_path / "a.jsonl").stat().st_size
    places = np.array([ord(name) - ord("a") + row / length for name, row in chosen])
    counts, _ = np.histogram(places, bins=10, range=(0, 4))
    assert counts.min() > 250  # of 500; runs of 100 that begin evenly


# How much is read


def test_the_check_reads_few_of_the_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_parquet(tmp_path / "a.parquet", [f"document number {i}" for i in range(40_000)], group_rows=200)
    spec = make_spec(tmp_path / "store", [{"kind": "parquet", "path": str(path)}])
    groups: list[int] = []
    read_group = parquet.Reader._read_group

    def note(self: parquet.Reader, url: str, file: Any, group: int, row: int) -> Iterator[Any]:
        groups.append(group)
        return read_group(self, url, file, group, row)

    monkeypatch.setattr(parquet.Reader, "_read_group", note)
    monkeypatch.setattr(parquet, "_MAX_BATCH_ROWS", 200)  # a batch is a row group, as those of usual files are
    version = build(spec).version
    assert groups[:200] == list(range(200))
    assert 10 <= len(groups[200:]) <= 20  # a run lies in one or two
    assert num_checked(spec, version) == NUM_SAMPLED


# What is found


@pytest.mark.parametrize("damage", ["gone", "text"])
def test_a_missing_or_changed_row_stops_the_build(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = lines_spec(tmp_path, [f"document number {i}" for i in range(20)])

    def changed(*arguments: Any) -> Iterator[Any]:
        for rows, place_of in read_rows(*arguments):
            rest = rows.take(np.arange(damage == "gone", len(rows.rows)))
            yield replace(rest, texts=pa.array(["x", *rest.texts.to_pylist()[1:]], rest.texts.type)), place_of

    monkeypatch.setattr(sample, "read_rows", changed)
    message = {
        "gone": r"a\.jsonl: row 0: gone since it was read",
        "text": r"a\.jsonl, .*: its text differs from shard train/000000 at token",
    }[damage]
    if damage == "gone":
        monkeypatch.setattr(sample, "read_rows", lambda *arguments: iter([]))
    with pytest.raises(CheckError, match=message):
        build(spec)
    store = local_store(spec.store, spec.dataset)
    assert list(store.names("tags")) == []


@pytest.mark.parametrize("found_by", ["check", "validate"])
def test_a_mask_that_lost_the_classes_of_its_conversations_stops_the_build(
    found_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_text(self: Spill, start: int, end: int) -> Iterator[NDArray[np.uint8]]:
        yield np.full(end - start, TEXT_CLASS, np.uint8)

    spec = with_chats(lines_spec(tmp_path, [f"document number {i}" for i in range(20)]), tmp_path, 10)
    monkeypatch.setattr(Spill, "classes", as_text)
    message = "encoded again, its ids or classes differ from shard train/000000"
    if found_by == "validate":
        monkeypatch.setattr("tokenloom.flows.build_steps.refuse_differences", lambda *_: None)
        message = (
            "shard train/000000.tok: tokens of texts, and those with this role in its mask: [0-9,]+ and [0-9,]+ differ"
        )
    with pytest.raises(CheckError, match=message):
        build(spec)
    assert list(local_store(spec.store, spec.dataset).names("tags")) == []
