"""The record of a partition: what became of its rows, and which spills hold its documents.

Written after the spills, so a build that finds a record and all that it lists need not encode the partition.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from tokenloom.storage.formats.statistics import ChatCounts
from tokenloom.storage.stores.store import Store
from tokenloom.storage.work.spill import FOLDER, SpillCounts, spill_path
from tokenloom.storage.work.work_files import find_work_record, find_work_records


@dataclass(frozen=True, slots=True)
class QuarantineSummary:
    """What a partition's list of skipped rows holds.

    `bytes` is the length of the list, `rows` how many rows it skips, `reasons` how many for each reason, `first` the
    message about the first of them.
    """

    bytes: int
    rows: int
    xxh3_128: str
    reasons: dict[str, int]
    first: str


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """What became of the rows of a partition.

    `not_read` rows are among the `filtered` ones; `unseen` are the keys that the source names and no row has. `encoder`
    is the name and version of the fast encoder that encoded some of its documents, None if there was none; `compared`
    bytes of their text were encoded by the reference too. `text_bytes` are those that were encoded, in UTF-8, 0 for
    tokens. `chat` counts what was rendered of conversations, None if there are none.
    """

    read: int
    filtered: int
    not_read: int
    unseen: list[str]
    spills: list[SpillCounts]
    quarantine: QuarantineSummary
    encoder: str | None
    compared: int
    text_bytes: int
    chat: ChatCounts | None = None


def partition_record_path(spill_name: str) -> str:
    """Return the path of the record of the partition whose spills are called `spill_name`."""
    return f"{FOLDER}/{spill_name}.json"


def quarantine_path(spill_name: str) -> str:
    """Return the path of the work file that lists a partition's skipped rows."""
    return f"{FOLDER}/{spill_name}.quarantine"


def find_partition_record(store: Store, spill_name: str) -> PartitionRecord | None:
    """Return a partition's record if it and all that it lists are there, else None."""
    record = find_work_record(store, partition_record_path(spill_name), PartitionRecord)
    if record is None:
        return None
    lengths = {path: store.num_bytes(path) for path in _files(spill_name, record)}
    return record if _is_complete(spill_name, record, lengths) else None


def find_partition_records(store: Store, spill_names: Iterable[str]) -> dict[str, PartitionRecord]:
    """Return the records of the complete partitions, by name; lists the folder once."""
    lengths = {f"{FOLDER}/{name}": num_bytes for name, num_bytes in store.lengths(FOLDER).items()}
    names = {path: name for name in spill_names if (path := partition_record_path(name)) in lengths}
    found = find_work_records(store, list(names), PartitionRecord)
    return {names[path]: record for path, record in found.items() if _is_complete(names[path], record, lengths)}


def remove_spills_of(store: Store, encoders: Collection[str]) -> int:
    """Delete the spills that fast encoders, by name and version, encoded; return how many partitions' they were."""
    names = [name.removesuffix(".json") for name in store.lengths(FOLDER) if name.endswith(".json")]
    found = find_work_records(store, list(map(partition_record_path, names)), PartitionRecord)
    records = {name: found.get(partition_record_path(name)) for name in names}
    removed = {name: record for name, record in records.items() if record and record.encoder in encoders}
    for name, record in removed.items():
        store.remove(partition_record_path(name))  # first: without it no build uses the others
        store.remove_files(list(_files(name, record)))
    return len(removed)


def _files(spill_name: str, record: PartitionRecord) -> dict[str, int]:
    """Return the paths and lengths of the files that a record lists."""
    files = {spill_path(spill_name, index): counts.bytes for index, counts in enumerate(record.spills)}
    listed = record.quarantine.bytes
    return files | ({quarantine_path(spill_name): listed} if listed else {})


def _is_complete(spill_name: str, record: PartitionRecord, lengths: Mapping[str, int | None]) -> bool:
    return all(lengths.get(path) == num_bytes for path, num_bytes in _files(spill_name, record).items())
