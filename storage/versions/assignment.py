"""The assignment: which key range each shard of a version takes, and which spills it reads. A work file.

Written by the step assign, read by every shuffle worker.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import lru_cache

from tokenloom.errors import FormatError, WorkError
from tokenloom.storage.formats.canonical import read_signed, sign
from tokenloom.storage.stores.store import Store

_NAME = "assignment.json"


@dataclass(frozen=True)
class SpillEntry:
    """One spill to read, in the total order of inputs: partition name, index in it, length, index into the inputs."""

    name: str
    index: int
    num_bytes: int
    input_index: int


@dataclass(frozen=True)
class ShardRange:
    """The part of a split's key range [start_key, end_key) that one shard takes.

    `num_tokens` and `num_documents` are what it should hold before duplicates are dropped, for bounding memory.
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


@dataclass(frozen=True)
class Assignment:
    """What the shuffle reads and writes.

    `totals` counts, before duplicates are dropped: {split: {"documents", "tokens"}}; `rows`: {"read", "filtered",
    "not_read", "quarantined"}.
    """

    spills: list[SpillEntry]
    shards: list[ShardRange]
    totals: dict[str, dict[str, int]]
    rows: dict[str, int]


def candidate_path(version: str, name: str) -> str:
    """Return the path of the work file `name` of a version that is not published yet."""
    return f"work/candidates/{version}/{name}"


def write_assignment(store: Store, version: str, assignment: Assignment) -> None:
    """Write the assignment of a version that is being built."""
    store.replace(candidate_path(version, _NAME), sign(asdict(assignment)), durable=False)


def read_assignment(store: Store, version: str) -> Assignment:
    """Return the assignment of a version that is being built; raises WorkError if it is gone or damaged."""
    path = candidate_path(version, _NAME)
    try:
        return _parse(store.read(path))
    except (FileNotFoundError, FormatError) as error:
        raise WorkError(f"{store.place(path)}: it is missing or damaged; it is made again") from error


@lru_cache(maxsize=1)
def _parse(data: bytes) -> Assignment:  # the same for every shard that a worker makes
    value = read_signed(data, _NAME)
    return Assignment(
        spills=[SpillEntry(**item) for item in value["spills"]],
        shards=[ShardRange(**item) for item in value["shards"]],
        totals=value["totals"],
        rows=value["rows"],
    )
