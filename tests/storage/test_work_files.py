"""Work files: a reader distinguishes present, missing and damaged files, whatever they contain."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.builders.memory_store import MemoryStore
from tokenloom.errors import WorkError
from tokenloom.storage.formats.manifest import FileEntry
from tokenloom.storage.formats.records import canonical_json, sign
from tokenloom.storage.formats.statistics import DocumentCounts, DocumentStatistics, EncodedCounts, MarkCounts
from tokenloom.storage.stores.local import LocalStore
from tokenloom.storage.stores.store import Store
from tokenloom.storage.work import records
from tokenloom.storage.work.marked import MarkedPartition, copies_path, find_marked, read_copies, write_copies
from tokenloom.storage.work.plans import PlanRecord, plan_path, planned_spills
from tokenloom.storage.work.records import (
    Assignment,
    PartitionRecord,
    QuarantineSummary,
    RunPart,
    RunPartRecord,
    ShardRange,
    ShardRecord,
    SpillCounts,
    SpillEntry,
    build_path,
    find_assignments,
    find_partition_records,
    find_run_parts,
    find_work_records,
    partition_record_path,
    quarantine_path,
    read_assignment,
    shard_record_path,
    spill_path,
    write_assignment,
    write_work_record,
)
from tokenloom.storage.work.spill import Spill, SpillDocuments, write_spill

_NONE = DocumentCounts(0, 0)
VERSION, SPILL = "0123456789abcdef", "0123abcd"
SHARD_PATH = shard_record_path(VERSION, "train/000000")
ASSIGNMENT = Assignment(
    [SpillEntry(SPILL, 0, 10, "c" * 32, 0, 0)],
    [ShardRange("train", 0, 0, 0, 2**64, 5, 1)],
    {"train": DocumentCounts(1, 5)},
    0,
    0,
    {},
    ["books"],
    {"books": EncodedCounts(1, 5, 17)},
)
RECORD = PartitionRecord(
    EncodedCounts(1, 5, 17, rows=3, filtered=1),
    0,
    ["id"],
    [SpillCounts(4, [1, 0], [5, 0], "c" * 32)],
    QuarantineSummary(2, 1, "0" * 32, {"bad_json": 1}, "a bad row"),
)
_FILES: dict[str, FileEntry] = {
    ".docs": {"bytes": 0, "sha256": "1" * 64},
    ".blocks": {"bytes": 2, "sha256": "2" * 64},
}
SHARD = ShardRecord(
    *("train/000000.tok", 3, 5, 1, "0" * 64, _FILES, "0" * 16, "f" * 16),
    max_id=4,
    statistics=DocumentStatistics([0, 1], {"books": DocumentCounts(1, 5)}),
)


def write_partition(store: LocalStore) -> None:
    store.replace(spill_path(SPILL, 0), b"1234")
    store.replace(quarantine_path(SPILL), b"[]")
    write_work_record(store, partition_record_path(SPILL), RECORD)


def write_shard(store: LocalStore) -> None:
    write_work_record(store, SHARD_PATH, SHARD)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[:-1],
    "of another shape": lambda data: sign({"spills": [{"name": 1}]}),
    "unsigned": lambda data: canonical_json({"files": {}}),
}


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    digest = write_assignment(store, VERSION, ASSIGNMENT).digest
    write_partition(store)
    write_shard(store)
    assert find_assignments(store, VERSION) == [ASSIGNMENT]
    assert read_assignment(str(store.root), VERSION, digest) == ASSIGNMENT
    assert find_partition_records(store, [SPILL, "missing"]) == {SPILL: RECORD}
    assert find_work_records(store, [SHARD_PATH], ShardRecord) == {SHARD_PATH: SHARD}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_work_file_is_rejected(damage: str, tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    digest = write_assignment(store, VERSION, ASSIGNMENT).digest
    write_partition(store)
    write_shard(store)
    paths = [build_path(VERSION, f"assignment-{digest}.json"), partition_record_path(SPILL)]
    for path in [*paths, SHARD_PATH]:
        store.replace(path, DAMAGES[damage](store.read(path)))
    with pytest.raises(
        WorkError, match=re.escape(f"work file damaged: {store.place(paths[0])}; run the same command again")
    ):
        read_assignment(str(store.root), VERSION, digest)
    assert find_partition_records(store, [SPILL]) == {}
    assert find_work_records(store, [SHARD_PATH], ShardRecord) == {}


@pytest.mark.parametrize("path", [spill_path(SPILL, 0), quarantine_path(SPILL)])
def test_a_partition_with_missing_or_truncated_files_has_no_record(path: str, tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for is_cut in (False, True):
        write_partition(store)
        store.remove(path)
        if is_cut:
            store.replace(path, b"1")
        assert find_partition_records(store, [SPILL]) == {}


def test_a_record_says_what_it_is_of_and_counts_as_missing_under_another_name(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    digest = write_assignment(store, VERSION, ASSIGNMENT).digest
    write_partition(store)
    write_shard(store)
    part, marked = RunPart("aa-0", 0, 0, 1, 0, 1), MarkedPartition("bb", MarkCounts({}, _NONE, {}, {}), [], {})
    spill = SpillCounts(0, [], [], "c" * 32)
    write_work_record(store, partition_record_path(part.name), RunPartRecord(spill, {}))
    write_work_record(store, partition_record_path("bb"), marked)
    write_work_record(store, plan_path(VERSION), PlanRecord(["cc"], "", "", ""))
    store.replace(spill_path(part.name, 0), b"")
    assert planned_spills(store, [VERSION]) == {"cc"}
    for name in ("aa-0", "bb", SPILL, "dd"):  # all files of the records are there under the other name too
        store.replace(spill_path(name, 0), store.read(spill_path(SPILL, 0)) if name == "dd" else b"")
    write_partition(store)
    store.replace(quarantine_path("dd"), b"[]")
    other = "f" * 16
    copies = {
        SHARD_PATH: [shard_record_path(VERSION, "train/000001"), shard_record_path(other, "train/000000")],
        partition_record_path(SPILL): [partition_record_path("dd")],
        partition_record_path("aa-0"): [partition_record_path("aa-1")],
        partition_record_path("bb"): [partition_record_path("be")],
        plan_path(VERSION): [plan_path(other)],
        build_path(VERSION, f"assignment-{digest}.json"): [
            build_path(VERSION, f"assignment-{other}.json"),
            build_path(other, f"assignment-{digest}.json"),
        ],
    }
    store.replace(spill_path("aa-1", 0), b"")
    for source, paths in copies.items():
        for path in paths:
            store.replace(path, store.read(source))
    assert find_work_records(store, [SHARD_PATH, *copies[SHARD_PATH]], ShardRecord) == {SHARD_PATH: SHARD}
    assert find_partition_records(store, [SPILL, "dd"]) == {SPILL: RECORD}
    made = find_run_parts(store, [part, replace(part, name="aa-1")])
    assert [each.is_made for each in made] == [True, False]
    assert find_marked(store, ["bb", "be"]) == {"bb": marked}
    assert planned_spills(store, [other]) == set()
    assert find_assignments(store, VERSION) == [ASSIGNMENT]
    assert find_assignments(store, other) == []
    for version, name in ((VERSION, other), (other, digest)):
        with pytest.raises(WorkError):
            read_assignment(str(store.root), version, name)


@pytest.mark.parametrize("change", ["other file", "other block"])
def test_numbers_of_copies_in_the_place_of_others_are_damage(change: str, tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    numbers = np.arange(3000).astype(np.uint8)
    for index in range(2):
        write_copies(store, "bb", index, numbers)
        assert np.array_equal(read_copies(store, "bb", index, 900, 2100), numbers[900:2100])
    data = store.read(copies_path("bb", 0))
    changed = data[1024:2048] + data[:1024] + data[2048:] if change == "other block" else data
    store.replace(copies_path("bb", 1), changed)
    with pytest.raises(WorkError, match=r"bb\.001\.copies"):
        read_copies(store, "bb", 1, 900, 2100)


class _BadNetwork(MemoryStore):
    """A store whose first answers about some paths arrive with a changed bit."""

    def __init__(self) -> None:
        super().__init__()
        self.num_changed: Counter[str] = Counter()

    def _arrived(self, path: str, data: bytes) -> bytes:
        if self.num_changed[path] <= 0:
            return data
        self.num_changed[path] -= 1
        return data[:20] + bytes([data[20] ^ 1]) + data[21:]

    def read(self, path: str) -> bytes:
        return self._arrived(path, super().read(path))

    def read_range(self, path: str, start: int, end: int) -> bytes:
        return self._arrived(path, self.files[path][0][start:end])


def _written_spill(store: Store) -> SpillCounts:
    lengths = np.full(10, 3, np.uint32)
    return write_spill(
        store,
        SPILL,
        0,
        SpillDocuments(
            split=np.zeros(10, np.uint8),
            key=np.arange(10, dtype=np.uint64),
            content=np.zeros((10, 2), np.uint64),
            row=np.arange(10, dtype=np.uint64),
            num_tokens=lengths,
            tokens=np.arange(30, dtype=np.uint16),
            id_bytes=np.zeros(10, np.uint32),
            ids=np.zeros(0, np.uint8),
        ),
        1,
        {},
    )


@pytest.mark.parametrize("num_changed", [0, 1, 2])
@pytest.mark.parametrize("kind", ["spill header", "spill body", "copies", "assignment", "record"])
def test_a_work_file_counts_as_damaged_once_it_arrived_damaged_twice(kind: str, num_changed: int) -> None:
    store = _BadNetwork()
    counts, path = _written_spill(store), spill_path(SPILL, 0)
    if kind == "spill body":
        spill = Spill(store, SPILL, 0, counts.bytes, counts.checksum)

    def read() -> object:
        if kind == "copies":
            return bool(read_copies(store, "bb", 0, 0, 9).tolist() == [1] * 9)
        if kind == "assignment":
            return read_assignment.__wrapped__("", VERSION, digest) == ASSIGNMENT
        if kind == "record":
            return find_work_records(store, [SHARD_PATH], ShardRecord) == {SHARD_PATH: SHARD}
        if kind == "spill header":
            return Spill(store, SPILL, 0, counts.bytes, counts.checksum).num_documents == [10]
        return [part.tolist() for part in spill.tokens(0, 30)] == [[*range(30)]]

    if kind == "copies":
        write_copies(store, "bb", 0, np.ones(9, np.uint8))
        path = copies_path("bb", 0)
    digest = write_assignment(store, VERSION, ASSIGNMENT).digest
    write_work_record(store, SHARD_PATH, SHARD)
    path = {"assignment": build_path(VERSION, f"assignment-{digest}.json"), "record": SHARD_PATH}.get(kind, path)
    store.num_changed[path] = num_changed
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "open_store", lambda _: store)
        if num_changed < 2:
            assert read() is True
        elif kind == "record":
            assert read() is False
        else:
            with pytest.raises(WorkError):
                read()
    assert store.exists(path) == (num_changed < 2 or kind == "record")
