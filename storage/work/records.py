"""The records of a build in work/: of each partition, of the assignment, and of each shard.

A record is written after the files that it lists. A build that finds a record and its files need not make them again.
A record says its own path, so a copy under another name counts as missing. A work file that a build needs and finds
missing or damaged is deleted, and ends the build.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import cast

from tokenloom.errors import FormatError, StoreError, WorkError
from tokenloom.storage.formats.manifest import ShardEntry
from tokenloom.storage.formats.records import JsonObject, Record, decode_record, fields_of, parse_json, sha256_of, sign
from tokenloom.storage.formats.statistics import DocumentCounts, DocumentStatistics, EncodedCounts, MarkCounts
from tokenloom.storage.stores import open_store
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.build_record import EncoderUse

FOLDER = "work/spills"


@contextmanager
def reading_work_file(store: Store, path: str, *, is_last: bool = True) -> Iterator[None]:
    """Delete a work file that the block finds damaged, and raise WorkError, also for one that is missing.

    Args:
        store: the dataset's store.
        path: the file's path, relative to the dataset's folder.
        is_last: False to end the block only, so that the caller reads again: a network changes bits.
    """
    try:
        yield
    except (FileNotFoundError, FormatError, StoreError) as error:
        if isinstance(error, StoreError) and not store.is_damage(error):
            raise
        if is_last:
            raise damaged(store, path) from error


def damaged(store: Store, path: str) -> WorkError:
    """Delete a work file, and return the error that names it and ends the build."""
    store.remove(path)
    return WorkError(store.place(path))


def find_work_records(store: Store, paths: Sequence[str], kind: type[Record]) -> dict[str, Record]:
    """Return the records in work files that are there, undamaged and under their own names, by path, in order.

    One that arrives damaged from a remote store is read once more.
    """
    records = {}
    for path, data in zip(paths, store.read_all(paths), strict=True):
        for is_last in (store.is_local, True):  # a remote file that arrives damaged is read again
            if data is None:
                break
            with suppress(FormatError):
                value = cast(JsonObject, parse_json(data, path, is_signed=True))
                if value.get("path", path) == path:
                    records[path] = decode_record(kind, value, path)
                break
            data = None if is_last else store.read_all([path])[0]
    return records


def write_work_record(store: Store, path: str, record: Record) -> None:
    """Write a record as a work file; it need not survive a loss of power."""
    store.replace(path, sign(fields_of(record) | {"path": path}), durable=False)


@dataclass(frozen=True, slots=True)
class SpillCounts:
    """The length of a spill, its documents and tokens by split, and the checksum of its header, which covers it all."""

    bytes: int
    documents: list[int]
    tokens: list[int]
    checksum: str


@dataclass(frozen=True, slots=True)
class QuarantineSummary:
    """A summary of a partition's list of skipped rows.

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
    """A partition that was encoded: counts of its rows, and its spills.

    `not_read` rows are among those that `encoded` counts as filtered; `unseen` are the keys that the source names and
    no row has. `encoder` is the name and version of the fast encoder that encoded some of its documents, None if there
    was none; `compared` bytes of their text were encoded by the reference too.
    """

    encoded: EncodedCounts
    not_read: int
    unseen: list[str]
    spills: list[SpillCounts]
    quarantine: QuarantineSummary
    encoder: str | None = None
    compared: int = 0


def spill_path(name: str, index: int) -> str:
    """Return the path in the store of spill `index` of the partition whose spills are called `name`."""
    return f"{FOLDER}/{name}.{index:03d}.spill"


def partition_record_path(spill_name: str) -> str:
    """Return the path of the record of the partition whose spills are called `spill_name`."""
    return f"{FOLDER}/{spill_name}.json"


def quarantine_path(spill_name: str) -> str:
    """Return the path of the work file that lists a partition's skipped rows."""
    return f"{FOLDER}/{spill_name}.quarantine"


def find_partition_records(store: Store, spill_names: Iterable[str]) -> dict[str, PartitionRecord]:
    """Return the records of the complete partitions, by name; lists the folder once."""
    lengths = {f"{FOLDER}/{name}": num_bytes for name, num_bytes in store.lengths(FOLDER).items()}
    names = {partition_record_path(name): name for name in spill_names}
    found = find_work_records(store, [path for path in names if path in lengths], PartitionRecord)
    return {
        names[path]: record for path, record in found.items() if _files(names[path], record).items() <= lengths.items()
    }


def remove_spills_of(store: Store, encoders: Collection[str]) -> int:
    """Delete the spills that fast encoders, by name and version, encoded; return how many partitions' they were."""
    names = [name.removesuffix(".json") for name in store.names(FOLDER) if name.endswith(".json")]
    records = find_partition_records(store, names)
    removed = {name: record for name, record in records.items() if record.encoder in encoders}
    for name, record in removed.items():
        store.remove(partition_record_path(name))  # first: without it no build uses the others
        store.remove_files(list(_files(name, record)))
    return len(removed)


def forget(store: Store, version: str, spill_names: Collection[str]) -> None:
    """Delete the records of spills, and of what a build of a version made of them: the next build makes them again."""
    made = store.files_below(f"{BUILDS}/{version}")
    store.remove_files([*map(partition_record_path, spill_names), *made])


def _files(spill_name: str, record: PartitionRecord) -> dict[str, int]:
    """Return the paths and lengths of the files that a record lists."""
    files = {spill_path(spill_name, index): counts.bytes for index, counts in enumerate(record.spills)}
    listed = record.quarantine.bytes
    return files | ({quarantine_path(spill_name): listed} if listed else {})


BUILDS = "work/builds"
_ASSIGNMENT = "assignment-"


@dataclass(frozen=True, slots=True)
class SpillEntry:
    """One spill to read: its partition's name, its index there, length and checksum, and the index of its input.

    `source_index` is the position of the input's source in Assignment.sources. `marked` names the marks of its
    documents, "" without marks; `is_copy` is True for a spill of further copies. Entries are in the order of inputs.
    """

    name: str
    index: int
    num_bytes: int
    checksum: str
    input_index: int
    source_index: int
    marked: str = ""
    is_copy: bool = False


@dataclass(frozen=True, slots=True)
class RunPart:
    """A part of a run: the documents of a split with keys in [start_key, end_key) of the spills [first, end), merged.

    Its file is spill 0 of its name. The rest is known when it is there, see RunPartRecord.
    """

    name: str
    split_index: int
    start_key: int
    end_key: int
    first: int
    end: int
    num_bytes: int = 0
    checksum: str = ""
    dropped: dict[str, int] = field(default_factory=dict, hash=False)
    index: int = 0

    @property
    def is_made(self) -> bool:
        """Whether its file is there."""
        return bool(self.checksum)


MergedFile = SpillEntry | RunPart


@dataclass(frozen=True, slots=True)
class RunPartRecord:
    """A part of a run that was merged: its file, and the counts of what was `dropped`, see Piece.counts."""

    spill: SpillCounts
    dropped: dict[str, int]


def find_run_parts(store: Store, parts: Sequence[RunPart]) -> list[RunPart]:
    """Return the parts; those that exist have length, checksum and counts."""
    lengths = {f"{FOLDER}/{name}": num_bytes for name, num_bytes in store.lengths(FOLDER).items()}
    paths = [path for part in parts if (path := partition_record_path(part.name)) in lengths]
    records, found = find_work_records(store, paths, RunPartRecord), []
    for part in parts:
        record = records.get(partition_record_path(part.name))
        if record and lengths.get(spill_path(part.name, 0)) == record.spill.bytes:
            part = replace(part, num_bytes=record.spill.bytes, checksum=record.spill.checksum, dropped=record.dropped)
        found.append(part)
    return found


@dataclass(frozen=True, slots=True)
class ShardRange:
    """The part of a split's key range, [start_key, end_key), that one shard takes.

    `num_tokens` and `num_documents` estimate its contents before duplicates are dropped; they bound the memory.
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
class Assignment:
    """The input and output of the shuffle; `totals` are by split, with duplicates, `encoders` by fast encoder.

    `parts` are those of the runs of all spills, in order, if there are any: then they are read in place of spills.
    `sources` are the names of the sources, `encoded` the counts of each. `not_read` and `quarantined` count rows
    of all inputs; those that were not read are among the filtered ones. `marks` are counts of
    the documents of each source, {} without marks. `digest` is that of all other fields, and names its file:
    another build of the version may have other spills, or other runs.
    """

    spills: list[SpillEntry]
    shards: list[ShardRange]
    totals: dict[str, DocumentCounts]
    not_read: int
    quarantined: int
    encoders: dict[str, EncoderUse]
    sources: list[str]
    encoded: dict[str, EncodedCounts]
    marks: dict[str, MarkCounts] = field(default_factory=dict)
    parts: list[RunPart] = field(default_factory=list)
    digest: str = field(default="", compare=False)

    def files(self, split_index: int, start_key: int, end_key: int) -> Sequence[MergedFile]:
        """Return the files that may hold documents of a split with keys in [start_key, end_key), in order."""
        if not self.parts:
            return self.spills
        of_split = (part for part in self.parts if part.split_index == split_index)
        return [part for part in of_split if part.start_key < end_key and start_key < part.end_key]


def build_path(version: str, name: str) -> str:
    """Return the path of the work file `name` of a version's build."""
    return f"{BUILDS}/{version}/{name}"


def find_assignments(store: Store, version: str) -> list[Assignment]:
    """Return the undamaged assignments of a version, the last written last: of several builds, or before a merge."""
    files = store.files_below(f"{BUILDS}/{version}")
    paths = sorted((path for path in files if f"/{_ASSIGNMENT}" in path), key=lambda path: files[path].modified)
    return list(find_work_records(store, paths, Assignment).values())


@lru_cache(maxsize=1)  # it may have 30 MB
def read_assignment(root: str, version: str, digest: str) -> Assignment:
    """Return an assignment of a version that is being built; raises WorkError if it is missing or damaged.

    A process reads it once, from the store at a path or URL.
    """
    store, path = open_store(root), build_path(version, f"{_ASSIGNMENT}{digest}.json")
    records = find_work_records(store, [path], Assignment)
    if path not in records:
        raise damaged(store, path)
    return records[path]


def write_assignment(store: Store, version: str, assignment: Assignment) -> Assignment:
    """Write an assignment of a version that is being built; return it with the digest of its content."""
    digest = sha256_of(replace(assignment, digest=""))[:16]
    named = replace(assignment, digest=digest)
    write_work_record(store, build_path(version, f"{_ASSIGNMENT}{digest}.json"), named)
    return named


@dataclass(slots=True)
class ShardRecord(ShardEntry):
    """A shard as it was written: its entry in the manifest, and figures, all with defaults, that only its build needs.

    `duplicates` counts documents that were left out, `copies` further copies among `documents`, `left_copies` copies
    that were left out as duplicates, `left_tokens` the tokens of all that were. `max_id` is the largest token id, -1 if
    there is none; `bad_ends` counts documents that do not end with end-of-text. `encoders` are the fast encoders that
    encoded spills of the build. `statistics` describe its documents.
    """

    duplicates: int = 0
    copies: int = 0
    left_copies: int = 0
    left_tokens: int = 0
    max_id: int = -1
    bad_ends: int = 0
    encoders: tuple[str, ...] = ()
    statistics: DocumentStatistics = field(default_factory=DocumentStatistics)

    @property
    def entry(self) -> ShardEntry:
        """Its entry in the manifest."""
        return ShardEntry(*(getattr(self, each.name) for each in fields(ShardEntry)))


def shard_record_path(version: str, name: str) -> str:
    """Return the path of the record of shard `name` ("train/000000") of a version that is being built."""
    return build_path(version, name.replace("/", "-") + ".json")
