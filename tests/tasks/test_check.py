"""The check of a build: which documents it encodes again, how much it reads, and what it finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.builders.chats import with_chats
from tests.builders.datasets import build, build_record, lines_spec, local_store, make_spec, write_jsonl, write_parquet
from tokenloom.errors import CheckError
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.formats.classes import TEXT_CLASS
from tokenloom.storage.formats.keys import KEY_SPACE
from tokenloom.storage.work.assignment import CheckedRows
from tokenloom.storage.work.partition_records import (
    CheckWindow,
    PartitionRecord,
    QuarantineSummary,
)
from tokenloom.storage.work.spill import TABLE_DTYPE, Spill, SpillCounts
from tokenloom.tasks.publishing import check
from tokenloom.tasks.rows.checked_rows import NUM_CHECKED, CheckedRowFinder, WindowChooser, choose_rows
from tokenloom.tasks.running.steps import Call, RunEach, StepJobs
from tokenloom.tasks.sources import Rows, parquet
from tokenloom.tasks.verification.reencoding import EncodedAgain, encode_again


def num_checked(spec: BuildSpec, version: str) -> int:
    return build_record(local_store(spec.store, "data"), version).measured["documents_encoded_again"]


def record_of(num_documents: int, window: CheckWindow | None) -> PartitionRecord:
    spills = [SpillCounts(1, [num_documents], [num_documents], "0" * 32)]
    return PartitionRecord(num_documents, 0, 0, [], spills, QuarantineSummary(0, 0, "", {}, ""), None, 0, 1, window)


# Which documents


def test_about_1000_documents_are_checked_however_uneven_the_splits(tmp_path: Path) -> None:
    splits = {"train": 0.996, "a": 0.001, "b": 0.001, "c": 0.001, "d": 0.001}
    spec = lines_spec(tmp_path, [f"document number {i}" for i in range(5000)], splits=splits)
    assert 850 < num_checked(spec, build(spec).version) < 1150  # 1,000, and 5 standard deviations


@pytest.mark.parametrize("deduplicate", [True, False])
def test_a_small_build_is_checked_whole(deduplicate: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_PART_DOCUMENTS", 100)
    texts = [f"document number {i % 700}" for i in range(NUM_CHECKED)]
    for name, half in (("a", texts[:500]), ("b", texts[500:])):
        write_jsonl(tmp_path / f"{name}.jsonl", half)
    sources = [{"kind": "jsonl", "path": f"{tmp_path}/*.jsonl"}]
    spec = make_spec(tmp_path / "store", sources, documents={"deduplicate": deduplicate})
    assert num_checked(spec, build(spec).version) == (700 if deduplicate else NUM_CHECKED)


@given(
    st.lists(st.integers(0, 50), max_size=30),
    st.text("0123456789abcdef", min_size=1, max_size=16),
)
def test_a_window_has_at_least_an_eighth_of_the_documents_and_knows_how_many(counts: list[int], name: str) -> None:
    chooser, first = WindowChooser(name), 7
    rows: list[int] = []
    for count in counts:
        batch = np.arange(first, first + 3 * count, 3, dtype=np.uint64)
        chooser.add(Rows(pa.array([""] * count, pa.large_string()), batch))
        rows += batch.tolist()
        first += 3 * count + 2
    window = chooser.window()
    if not rows:
        assert window is None
        return
    assert window is not None
    inside = sum(window.first_row <= row < window.end_row for row in rows)
    assert window.documents == inside >= len(rows) / 8
    assert inside <= 2 * -(-len(rows) // 8) + max(counts)  # a tile, and a last one that is too short


def test_windows_of_many_partitions_cover_their_files_evenly() -> None:
    seen = Counter[int]()
    for name in range(1600):
        chooser = WindowChooser(f"{name:016x}")
        for batch in range(16):
            chooser.add(Rows(pa.array(["", ""], pa.large_string()), np.array([2 * batch, 2 * batch + 1], np.uint64)))
        window = chooser.window()
        assert window is not None
        seen.update(range(window.first_row, min(window.end_row, 32)))
    assert len(seen) == 32
    assert 130 < min(seen.values()) <= max(seen.values()) < 270  # 200, and 5 standard deviations


def num_found(checked: Sequence[CheckedRows], num_rows: int) -> list[int]:
    """Return how many of `num_rows` documents of each spill are checked."""
    rows = np.zeros(len(checked) * num_rows, TABLE_DTYPE)
    rows["row"] = np.tile(np.arange(num_rows), len(checked))
    rows["content_high"] = np.arange(len(rows)) * 7919
    position = np.repeat(np.arange(len(checked), dtype=np.uint32), num_rows)
    found = CheckedRowFinder(checked).find(rows, position)
    return [int((position[found] == i).sum()) for i in range(len(checked))]


def test_a_partition_gives_its_share_from_its_window() -> None:
    window = CheckWindow(10_000, 20_000, 10_000)
    chosen = choose_rows(record_of(80_000, window), num_documents=800_000)
    assert (chosen.first_row, chosen.end_row) == (10_000, 20_000)
    (count,) = num_found([chosen], 80_000)
    assert 60 < count < 140  # a tenth of 1,000


@pytest.mark.parametrize("window", [None, CheckWindow(10, 260, 250), CheckWindow(10, 1010, 1000)])
def test_a_partition_gives_all_its_documents_a_chance_where_a_window_may_be_too_small(
    window: CheckWindow | None,
) -> None:
    """Whatever its size: otherwise the documents of a large window would be checked more often."""
    chosen = choose_rows(record_of(2000, window), num_documents=4000)
    assert (chosen.first_row, chosen.end_row) == (0, KEY_SPACE)
    (count,) = num_found([chosen], 2000)
    assert 400 < count < 600


def test_spills_differ_in_what_is_checked() -> None:
    everything, nothing = CheckedRows(0, KEY_SPACE, KEY_SPACE - 1), CheckedRows(50, 50, KEY_SPACE - 1)
    assert num_found([everything, nothing, CheckedRows(3, 6, KEY_SPACE - 1)], 100) == [100, 0, 3]


# How much is read


def test_the_check_reads_few_of_the_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_parquet(tmp_path / "a.parquet", [f"document number {i}" for i in range(40_000)], group_rows=1000)
    spec = make_spec(tmp_path / "store", [{"kind": "parquet", "path": str(path)}])
    groups: list[int] = []
    read_group = parquet.Reader._read_group

    def note(self: parquet.Reader, url: str, file: Any, group: int, row: int) -> Iterator[Rows]:
        groups.append(group)
        return read_group(self, url, file, group, row)

    monkeypatch.setattr(parquet.Reader, "_read_group", note)
    monkeypatch.setattr(parquet, "_MAX_BATCH_ROWS", 1000)  # a batch is a row group, as those of usual files are
    version = build(spec).version
    assert groups[:40] == list(range(40))
    assert 5 <= len(groups[40:]) <= 7
    assert num_checked(spec, version) > 850


# What is found


@pytest.mark.parametrize("damage", ["gone", "text", "forgotten"])
def test_a_missing_changed_or_unchecked_row_stops_the_build(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = lines_spec(tmp_path, [f"document number {i}" for i in range(20)])
    find_rows = check._find_rows

    def changed(*arguments: Any) -> Iterator[EncodedAgain]:
        found = list(encode_again(*arguments))
        if damage == "text":
            found[3] = EncodedAgain(found[3].row, found[3].place, "0" * 32, found[3].ids_hash)
        yield from found[damage == "gone" :]

    monkeypatch.setattr(check, "encode_again", changed)
    if damage == "forgotten":
        monkeypatch.setattr(check, "_find_rows", lambda job: find_rows(job)[1:])
    messages = {
        "gone": r"a\.jsonl: 1 of its rows are gone since they were read",
        "text": r"a\.jsonl, .*: its text differs from shard train/000000 at token",
        "forgotten": r"shard \w+/000000 at token \d+: its row 0 of .*a\.jsonl was not encoded again",
    }
    with pytest.raises(CheckError, match=messages[damage]):
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
        monkeypatch.setattr(check, "_compare", lambda *_: None)
        message = (
            "shard train/000000: tokens of texts, and those with this role in its mask: [0-9,]+ and [0-9,]+ differ"
        )
    with pytest.raises(CheckError, match=message):
        build(spec)
    assert list(local_store(spec.store, spec.dataset).names("tags")) == []


# When


def test_steps_that_do_not_need_each_other_share_the_workers() -> None:
    submitted: list[list[tuple[str, str]]] = []

    def submit(calls: Sequence[Call]) -> list[Any]:
        submitted.append([(call.name, call.label) for call in calls])
        return [call.run() for call in calls]

    run_each = RunEach(lambda step, job: step(job), submit)
    shuffle: StepJobs = ("shuffle", str, [("a", 1), ("b", 2)])
    assert run_each.run_together(shuffle, ("nothing", str, []), ("check", abs, [("c", -3)])) == [["1", "2"], [], [3]]
    assert submitted == [[("shuffle", "a"), ("shuffle", "b"), ("check", "c")]]
