"""The assignment: which key range each shard of a version takes, and which spills it reads.

The assign step writes it; every worker that shuffles reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tokenloom.storage.formats.canonical import read_signed_record
from tokenloom.storage.formats.statistics import DocumentCounts, EncodedCounts
from tokenloom.storage.formats.version_files import EncoderUse
from tokenloom.storage.stores.store import Store
from tokenloom.storage.work.work_files import reading_work_file, write_work_record

BUILDS = "work/builds"
_NAME = "assignment.json"


@dataclass(frozen=True, slots=True)
class SpillEntry:
    """One spill to read: its partition's name, its index there, length and checksum, and the index of its input.

    `source_index` is the position of the input's source in Assignment.sources. Entries are in the order of inputs.
    """

    name: str
    index: int
    num_bytes: int
    checksum: str
    input_index: int
    source_index: int


@dataclass(frozen=True, slots=True)
class ShardRange:
    """The part of a split's key range, [start_key, end_key), that one shard takes.

    `num_tokens` and `num_documents` estimate what it holds before duplicates are dropped; they bound the memory.
    """

    split: str
    split_index: int
    shard_index: int
    start_key: int
    end_key: int
    num_tokens: int
    num_documents: int

    @property
    def name(self) -> str:
        """The path of the shard in its version, without suffix."""
        return f"{self.split}/{self.shard_index:06d}"


@dataclass(frozen=True, slots=True)
class RowsRead:
    """What became of the rows of all inputs before they were shuffled; `not_read` rows are among the filtered ones."""

    read: int
    filtered: int
    not_read: int
    quarantined: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the shuffle reads and writes; `totals` are by split, with duplicates, `encoders` what fast encoders did.

    `sources` are the names of the sources, `encoded` what was encoded of each.
    """

    spills: list[SpillEntry]
    shards: list[ShardRange]
    totals: dict[str, DocumentCounts]
    rows: RowsRead
    encoders: dict[str, EncoderUse]
    sources: list[str]
    encoded: dict[str, EncodedCounts]


def build_path(version: str, name: str) -> str:
    """Return the path of the work file `name` of a version's build."""
    return f"{BUILDS}/{version}/{name}"


def write_assignment(store: Store, version: str, assignment: Assignment) -> None:
    """Write the assignment of a version that is being built."""
    write_work_record(store, build_path(version, _NAME), assignment)


def read_assignment(store: Store, version: str) -> Assignment:
    """Return the assignment of a version that is being built; raises WorkError if it is missing or damaged."""
    path = build_path(version, _NAME)
    with reading_work_file(store, path):
        return _parse(store.read(path), store.place(path))


@lru_cache(maxsize=1)
def _parse(data: bytes, place: str) -> Assignment:  # the same for every shard that a worker makes
    return read_signed_record(data, place, Assignment)
