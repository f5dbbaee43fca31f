"""Work files: a reader distinguishes present, missing and damaged files, whatever they contain."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tokenloom.errors import WorkError
from tokenloom.storage.formats.manifest import FileEntry
from tokenloom.storage.formats.records import canonical_json, sign
from tokenloom.storage.formats.statistics import DocumentCounts, DocumentStatistics, EncodedCounts
from tokenloom.storage.stores.local import LocalStore
from tokenloom.storage.work.records import (
    Assignment,
    PartitionRecord,
    QuarantineSummary,
    ShardRange,
    ShardRecord,
    SpillCounts,
    SpillEntry,
    build_path,
    find_assignments,
    find_partition_records,
    find_work_records,
    partition_record_path,
    quarantine_path,
    read_assignment,
    shard_record_path,
    spill_path,
    write_assignment,
    write_work_record,
)

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
