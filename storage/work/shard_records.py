"""The record of a shard that a build has written: its row of the manifest, and what the validation needs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tokenloom.storage.formats.shard_entries import ShardEntry
from tokenloom.storage.formats.statistics import DocumentStatistics
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import version_path
from tokenloom.storage.work.assignment import build_path
from tokenloom.storage.work.work_files import find_work_record


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """A shard as it was written; `name` is its path in the version without suffix, `entry` its row of the manifest.

    `duplicates` and `excluded` count documents that were left out, `left_tokens` the tokens of both. `max_id` is the
    largest token id, -1 if there is none; `bad_ends` counts documents that do not end with end-of-text. `encoders` are
    the fast encoders that encoded spills of the build. `statistics` describe its documents, `class_counts` the tokens
    by class, of a shard with a mask.
    """

    name: str
    split: str
    entry: ShardEntry
    duplicates: int
    excluded: int
    left_tokens: int
    max_id: int
    bad_ends: int
    encoders: tuple[str, ...]
    statistics: DocumentStatistics
    class_counts: dict[str, int]


def shard_record_path(version: str, name: str) -> str:
    """Return the path of the record of shard `name` ("train/000000") of a version that is being built."""
    return build_path(version, name.replace("/", "-") + ".json")


def find_shard_record(store: Store, version: str, name: str, encoders: Collection[str]) -> ShardRecord | None:
    """Return the record of a shard if its files are there, with their lengths, else None.

    Args:
        store: the dataset's store.
        version: of the shard.
        name: of the shard: "train/000000".
        encoders: the fast encoders whose ids the build may use; a shard that may hold others does not count.
    """
    record = find_work_record(store, shard_record_path(version, name), ShardRecord)
    if record is None or not set(record.encoders).issubset(encoders):
        return None
    listed = record.entry.listed
    is_complete = all(store.num_bytes(version_path(version, name)) == file.bytes for name, file in listed.items())
    return record if is_complete else None
