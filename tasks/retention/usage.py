"""What uses the space of a dataset: by version, spills, candidates, unfinished files, reports."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from tokenloom.errors import FormatError
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.retirement import RETIRED
from tokenloom.tasks.retention.collect import Collected, collect
from tokenloom.tasks.retention.policy import Policy
from tokenloom.tasks.retention.survey import VersionStatus

_PARTS = {
    "versions": "versions",
    "work/spills": "spills",
    "work/builds": "candidates",
    "work/tmp": "temporaries",
    "reports": "reports",
}


@dataclass(frozen=True)
class VersionUsage:
    """The space that a version uses.

    `state` is "published", "retired", "candidate" if it is not published, or "unknown" beside a damaged log.
    """

    version: str
    state: str
    tags: list[str]
    leases: list[str]
    files: int
    bytes: int


@dataclass(frozen=True)
class DatasetUsage:
    """The space that a dataset uses, in bytes.

    `candidates` are the records of builds in work/, also of published versions; `other` is everything else: tags,
    leases, records. `gc_frees` is what a run of gc would free now. `damage` names the damaged log that stops gc, if
    there is one.
    """

    dataset: str
    bytes: int
    versions: list[VersionUsage]
    spills: int
    candidates: int
    temporaries: int
    reports: int
    other: int
    gc_frees: int
    gc_retires: list[str]
    damage: str | None


def measure(store: Store, policy: Policy) -> DatasetUsage:
    """Return what uses the space of a dataset, and what gc would free; changes nothing.

    Args:
        store: the dataset's store.
        policy: that of the run of gc.

    Raises:
        StoreError: there is no such dataset, or the store can't be read.
    """
    damage = None
    try:
        would = collect(store, policy, dry_run=True)
    except FormatError as error:
        would, damage = Collected(str(store.root).rpartition("/")[2], dry_run=True), str(error)
    files = store.files_below("")
    parts: Counter[str] = Counter()
    sizes_of: defaultdict[str, list[int]] = defaultdict(list)  # the sizes of the files of a version
    for path, file in files.items():
        parts[_part(path)] += file.num_bytes
        if path.startswith("versions/"):
            sizes_of[path.split("/")[1]].append(file.num_bytes)
    return DatasetUsage(
        dataset=would.dataset,
        bytes=sum(file.num_bytes for file in files.values()),
        versions=(
            [_usage(status, sizes_of[status.version]) for status in would.surveyed]
            if damage is None
            else [VersionUsage(name, "unknown", [], [], len(sizes), sum(sizes)) for name, sizes in sizes_of.items()]
        ),
        **{part: parts[part] for part in ("spills", "candidates", "temporaries", "reports", "other")},
        gc_frees=would.bytes,
        gc_retires=would.retired,
        damage=damage,
    )


def _part(path: str) -> str:
    """Return the part of a dataset that a file belongs to."""
    return next((part for folder, part in _PARTS.items() if path.startswith(f"{folder}/")), "other")


def _usage(status: VersionStatus, sizes: list[int]) -> VersionUsage:
    published = "retired" if status.state == RETIRED else "published"
    return VersionUsage(
        version=status.version,
        state="candidate" if status.published is None else published,
        tags=list(status.tags),
        leases=list(status.users),
        files=len(sizes),
        bytes=sum(sizes),
    )
